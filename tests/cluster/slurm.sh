# shellcheck shell=bash
# A real Slurm inside of a lab, from Debian's packages: munged and slurmctld on `login`, one slurmd on each
# host, so that each node is a machine by itself to Slurm and no build for several slurmd is needed. Its
# files, key and sockets are in the lab's folder; all of it ends with the lab. Sourced by what runs in
# `lab.sh with`, as root.

# slurm_missing: what is not installed, as one line; nothing: all is there.
slurm_missing()
{
    local tool missing=
    for tool in slurmctld slurmd srun scontrol munged; do
        PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null || missing="$missing $tool"
    done
    echo "${missing# }"
}

# slurm_configure SLOTS: a node has so many processors, whatever the machine has. slurm_dir and SLURM_CONF
# are set.
slurm_configure()
{
    slurm_dir=$LAB_DIR/slurm
    export SLURM_CONF=$slurm_dir/slurm.conf
    mkdir -m 755 "$slurm_dir" "$slurm_dir/state"
    cp "$LAB_DIR/topology.conf" "$slurm_dir/topology.conf"
    # slurmd needs the kind; nothing here uses it, and hosts of the lab have none mounted.
    echo "CgroupPlugin=cgroup/v1" >"$slurm_dir/cgroup.conf"
    cat >"$SLURM_CONF" <<CONF
ClusterName=lab
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm_dir/munge.sock
CredType=cred/munge
StateSaveLocation=$slurm_dir/state
SlurmdSpoolDir=$slurm_dir/spool.%n
TmpFS=$slurm_dir/tmp.%n
SlurmctldPidFile=$slurm_dir/slurmctld.pid
SlurmdPidFile=$slurm_dir/slurmd.%n.pid
SlurmctldLogFile=$slurm_dir/slurmctld.log
SlurmdLogFile=$slurm_dir/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
TopologyPlugin=topology/tree
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=20
KillWait=2
NodeName=$(./lab.sh hosts | paste -sd ,) CPUs=$1 State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES State=UP MaxTime=INFINITE
CONF
}

# slurm_up SLOTS: returns when all nodes are idle; the daemons end with the lab.
slurm_up()
{
    local host nodes
    PATH=$PATH:/usr/sbin:/sbin
    slurm_configure "$1"
    head -c 1024 /dev/urandom >"$slurm_dir/munge.key"
    chmod 600 "$slurm_dir/munge.key"
    # In /tmp there are folders that every user may write to, which munged refuses.
    munged --foreground --force --num-threads=2 --key-file="$slurm_dir/munge.key" \
        --socket="$slurm_dir/munge.sock" --pid-file="$slurm_dir/munged.pid" \
        --log-file="$slurm_dir/munged.log" --seed-file="$slurm_dir/munged.seed" >"$slurm_dir/munged.out" 2>&1 &
    slurmctld -D -i >"$slurm_dir/slurmctld.out" 2>&1 &
    for host in $(./lab.sh hosts); do
        mkdir "$slurm_dir/spool.$host" "$slurm_dir/tmp.$host"
        ./lab.sh run "$host" slurmd -D -N "$host" >"$slurm_dir/slurmd.$host.out" 2>&1 &
    done
    nodes=$(./lab.sh hosts | wc -l)
    for _ in $(seq 200); do
        if [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)" -eq "$nodes" ]; then
            return 0
        fi
        sleep 0.1
    done
    echo "Slurm's nodes are not idle after 20 s:"
    sinfo -N || true
    tail -n 15 "$slurm_dir"/*.log
    return 1
}
