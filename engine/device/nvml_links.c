/*
 * How devices are joined, by the driver: each device's NVLinks one by one, whether they
 * lead to a device or an NVSwitch, the links of a Grace processor, and the NVLink domain over
 * hosts. What becomes of it is for topology/hwloc/live.c.
 *
 * A virtual machine hides what is at the other end: such a link leads to an NVSwitch, as NCCL takes
 * it too, since that is what clouds give parts of.
 */
#include "device/nvml_api.h"
#include "topology/hwloc/live.h"

#include <stdio.h>
#include <string.h>

/* Links are queried until the driver reports that there is no such number; the guide has 18, and 36
 * in its newest edition. */
#define LINKS_MAX 64

_Static_assert(sizeof(struct nvml_pci) == 68 && sizeof(struct nvml_field) == 40 &&
                   sizeof(struct nvml_fabric_1) == 28 && sizeof(struct nvml_fabric) == 40,
               "the guide's layouts");

/* nvmlFieldValue_t's numbers, scope: the link. */
enum {
    LINKS_FIELD_TO_SWITCH = 147, /* how many links of the device lead to an NVSwitch */
    LINKS_FIELD_STATE = 165,
    LINKS_FIELD_C2C_COUNT = 170,
    LINKS_FIELD_C2C_STATUS = 171,
    LINKS_FIELD_C2C_MBS = 172
};

static bool links_field(const struct nvml_functions *call, nvml_device handle, unsigned field,
                        unsigned scope, unsigned long long *value_out)
{
    struct nvml_field wanted = {.field = field, .scope = scope};
    return NVML_TRY(call, fields, handle, 1, &wanted) && tess__watch_field(&wanted, value_out);
}

/* *end_out: the device has no link of this number, nor any higher. */
static bool links_active(const struct nvml_functions *call, nvml_device handle, int32_t sm,
                         unsigned link, bool *end_out)
{
    unsigned long long state;
    nvml_return code;
    int active = 0;

    *end_out = false;
    /* From Hopper on the function may fail where the field is there. */
    if (sm >= 90 && links_field(call, handle, LINKS_FIELD_STATE, link, &state))
        return state == 1;
    if (call->link_state == NULL)
        return false;
    code = call->link_state(handle, link, &active);
    *end_out = code == NVML_INVALID_ARGUMENT;
    return code == NVML_OK && active == 1;
}

static bool links_carry(const struct nvml_functions *call, nvml_device handle, unsigned link)
{
    unsigned can = 1;
    return !NVML_TRY(call, link_can, handle, link, NVML_LINK_P2P, &can) || can == 1;
}

/* The bus id at the other end; "" where a virtual machine hides it, which then reads as nothing, as
 * what is no text, or as fffffff:ffff:ff.f. False: it is not there at all. */
static bool links_remote_bus(const struct nvml_functions *call, nvml_device handle, unsigned link,
                             char bus[32])
{
    struct nvml_pci pci = {.domain = 0};
    unsigned domain, number, place;
    if (!NVML_TRY(call, link_pci, handle, link, &pci))
        return false;
    pci.id[sizeof(pci.id) - 1] = '\0';
    bus[0] = '\0';
    if (sscanf(pci.id, "%x:%x:%x", &domain, &number, &place) == 3 && number <= 0xff &&
        place <= 0x1f)
        snprintf(bus, 32, "%04x:%02x:%02x.0", domain, number, place);
    return true;
}

static void links_add_peer(struct tess_live_device *device, const char *bus)
{
    int32_t at = 0;
    while (at < device->peer_count && strcmp(device->peer[at].bus, bus) != 0)
        at++;
    if (at == TESS_LIVE_PEERS_MAX)
        return;
    if (at == device->peer_count) {
        device->peer[at] = (struct tess_live_peer){.links = 0};
        snprintf(device->peer[at].bus, sizeof(device->peer[at].bus), "%s", bus);
        device->peer_count++;
    }
    device->peer[at].links++;
}

/* One link that is up. A link that is neither reported as a switch's nor ends at a device of the
 * driver counts as a switch's where the device reports that it has such links. */
static void links_add(const struct tess_watch *watch, nvml_device handle, unsigned link,
                      bool switched, struct tess_live_device *device)
{
    int type = NVML_REMOTE_UNKNOWN;
    char bus[32];
    if (!NVML_TRY(&watch->call, link_remote, handle, link, &type))
        type = NVML_REMOTE_UNKNOWN;
    if (type == NVML_REMOTE_NPU)
        return; /* to a POWER processor, which CUDA of today does not run on */
    if (type == NVML_REMOTE_SWITCH) {
        device->switch_links++;
        return;
    }
    if (!links_remote_bus(&watch->call, handle, link, bus))
        return;
    if (bus[0] == '\0' ||
        (type == NVML_REMOTE_UNKNOWN && switched && tess_watch_find(watch, bus) < 0))
        device->switch_links++;
    else
        links_add_peer(device, bus);
}

static void links_nvlinks(const struct tess_watch *watch, nvml_device handle,
                          struct tess_live_device *device)
{
    const struct nvml_functions *call = &watch->call;
    unsigned long long to_switch = 0;
    bool end = false;

    if (!links_field(call, handle, LINKS_FIELD_TO_SWITCH, 0, &to_switch))
        to_switch = 0;
    /* A link that is down or not supported is followed by others. */
    for (unsigned link = 0; link < LINKS_MAX && !end; link++)
        if (links_active(call, handle, device->sm, link, &end) && links_carry(call, handle, link))
            links_add(watch, handle, link, to_switch > 0, device);
}

static void links_c2c(const struct nvml_functions *call, nvml_device handle,
                      struct tess_live_device *device)
{
    unsigned long long count, status, mbs;

    if (!links_field(call, handle, LINKS_FIELD_C2C_COUNT, 0, &count))
        return;
    for (unsigned link = 0; link < count && link < LINKS_MAX; link++) {
        if (!links_field(call, handle, LINKS_FIELD_C2C_STATUS, link, &status) || status != 1 ||
            !links_field(call, handle, LINKS_FIELD_C2C_MBS, link, &mbs))
            continue;
        device->c2c_links++;
        device->c2c_gbs += 1e-3 * (double)mbs;
    }
}

/* Known once the fabric manager has registered the device; until then it is in no domain. */
static void links_fabric(const struct nvml_functions *call, nvml_device handle,
                         struct tess_live_device *device)
{
    struct nvml_fabric info = {.version = NVML_FABRIC_V3};
    struct nvml_fabric_1 first = {.state = 0};
    bool known = NVML_TRY(call, fabric, handle, &info);
    if (!known) {
        info = (struct nvml_fabric){.version = NVML_FABRIC_V2};
        known = NVML_TRY(call, fabric, handle, &info);
    }
    if (!known && NVML_TRY(call, fabric_1, handle, &first)) {
        info.state = first.state;
        info.status = first.status;
        info.clique = first.clique;
        memcpy(info.uuid, first.uuid, sizeof(info.uuid));
        known = true;
    }
    if (!known || info.state != NVML_FABRIC_COMPLETED || info.status != NVML_OK)
        return;
    memcpy(device->fabric_uuid, info.uuid, sizeof(device->fabric_uuid));
    device->fabric_clique = (int32_t)info.clique;
}

int32_t tess_watch_links(const struct tess_watch *watch, struct tess_live_device *device)
{
    const struct nvml_functions *call = &watch->call;
    int32_t count = 0;
    for (int32_t d = 0; d < watch->device_count; d++) {
        nvml_device handle = watch->device[d].handle;
        struct tess_live_device *own = &device[count];
        int major, minor;
        if (handle == NULL || watch->device[d].bus[0] == '\0')
            continue;
        *own = (struct tess_live_device){.index = d};
        memcpy(own->bus, watch->device[d].bus, sizeof(own->bus));
        if (!NVML_TRY(call, name, handle, own->name, (unsigned)sizeof(own->name)))
            own->name[0] = '\0';
        if (NVML_TRY(call, capability, handle, &major, &minor))
            own->sm = 10 * major + minor;
        links_nvlinks(watch, handle, own);
        links_c2c(call, handle, own);
        links_fabric(call, handle, own);
        count++;
    }
    return count;
}
