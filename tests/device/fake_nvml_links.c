/*
 * The made-up NVML's links. FAKE_NVML_LINKS in the environment:
 *
 *   pairs    12 links between the two devices, of which link 3 is down, link 5 cannot be asked and
 *            link 7 carries no memory; the end is marked by a refused argument
 *   switch   18 links each to an NVSwitch, their state in fields alone
 *   hidden   18 links each to what a virtual machine hides, in one of three ways
 *   unknown  18 links each to a bus id that no device has; fields say that all lead to NVSwitches
 *   foreign  the same, and fields say that none does
 *   fabric   as switch, in an NVLink domain (second device: still being registered), and C2C
 *   older    as fabric, by the second version of that struct
 *   oldest   as fabric, by the first
 *
 * Else, and compiled as an old driver, there is nothing.
 */
#include "fake_nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_fabric_1 {
    unsigned char uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
};
struct fake_fabric {
    unsigned version;
    unsigned char uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned mask;
    unsigned char summary;
};

#define FAKE_INVALID_ARGUMENT 2
#define FAKE_OTHER_VERSION    25

static int links_is(const char *what)
{
    const char *set = getenv("FAKE_NVML_LINKS");

    return set != NULL && strcmp(set, what) == 0;
}

static int links_fabric(void)
{
    return links_is("fabric") || links_is("older") || links_is("oldest");
}

static unsigned links_count(void)
{
    if (links_is("pairs"))
        return 12;
    return links_is("switch") || links_is("hidden") || links_is("unknown") || links_is("foreign") ||
                   links_fabric()
               ? 18
               : 0;
}

int fake_links_field(const void *handle, struct fake_field *field)
{
    const unsigned field_number = field->field, scope = field->scope;

    (void)handle;
    if (field_number < 147 || links_count() == 0)
        return 0;
    field->type = 1;
    field->status = 0;
    field->value = 0xdeadbeef00000000ull; /* what is not of its type is not to be read */
    if (field_number == 147 && !links_is("hidden"))
        field->value += links_is("foreign") || links_is("pairs") ? 0 : 18;
    else if (field_number == 165 && !links_is("pairs") && scope < links_count())
        field->value += 1;
    else if (field_number == 170 && links_fabric())
        field->value += 3;
    else if (field_number == 171 && links_fabric())
        field->value += scope != 1; /* the second is down */
    else if (field_number == 172 && links_fabric())
        field->value += 90000;
    else
        field->status = FAKE_NOT_SUPPORTED;
    return 1;
}

#ifndef FAKE_NVML_OLD
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor);
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active);
int nvmlDeviceGetNvLinkCapability(void *handle, unsigned link, int what, unsigned *can);
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct fake_pci *pci);
int nvmlDeviceGetGpuFabricInfoV(void *handle, struct fake_fabric *info);
int nvmlDeviceGetGpuFabricInfo(void *handle, struct fake_fabric_1 *info);

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    (void)handle;
    *major = 9;
    *minor = 0;
    return 0;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *active)
{
    (void)handle;
    if (link >= links_count())
        return FAKE_INVALID_ARGUMENT;
    if (!links_is("pairs") || link == 5)
        return FAKE_NOT_SUPPORTED;
    *active = link != 3;
    return 0;
}

int nvmlDeviceGetNvLinkCapability(void *handle, unsigned link, int what, unsigned *can)
{
    (void)handle;
    *can = !(links_is("pairs") && link == 7 && what == 0);
    return 0;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type)
{
    (void)handle, (void)link;
    *type = links_is("pairs") ? 0 : links_is("switch") || links_fabric() ? 2 : 0xff;
    return links_is("hidden") ? FAKE_NOT_SUPPORTED : 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct fake_pci *pci)
{
    static const char *const hidden[] = {"", "\x01\xff\x7f", "FFFFFFF:FFFF:FF.F"};

    memset(pci, 0, sizeof(*pci));
    if (links_is("pairs"))
        snprintf(pci->id, sizeof(pci->id), "00000000:%02X:00.0", fake_index(handle) ? 0x18 : 0xaf);
    else if (links_is("hidden"))
        snprintf(pci->id, sizeof(pci->id), "%s", hidden[link % 3]);
    else
        snprintf(pci->id, sizeof(pci->id), "00000000:C0:00.0");
    return 0;
}

static void links_uuid(unsigned char uuid[16])
{
    for (int i = 0; i < 16; i++)
        uuid[i] = (unsigned char)(0xa0 + i);
}

int nvmlDeviceGetGpuFabricInfoV(void *handle, struct fake_fabric *info)
{
    const unsigned wanted = links_is("older") ? 0x02000024 : 0x03000028;

    if (!links_fabric() || links_is("oldest"))
        return FAKE_NOT_SUPPORTED;
    if (info->version != wanted)
        return FAKE_OTHER_VERSION;
    links_uuid(info->uuid);
    info->clique = 7;
    info->state = fake_index(handle) == 0 ? 3 : 2;
    return 0;
}

int nvmlDeviceGetGpuFabricInfo(void *handle, struct fake_fabric_1 *info)
{
    if (!links_is("oldest"))
        return FAKE_NOT_SUPPORTED;
    links_uuid(info->uuid);
    info->status = 0;
    info->clique = 7;
    info->state = fake_index(handle) == 0 ? 3 : 2;
    return 0;
}
#endif
