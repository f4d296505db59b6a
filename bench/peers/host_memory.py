"""Peak resident memory of this process, for the processes that benches start."""


def peak_host_memory_mib():
    """VmHWM. ru_maxrss survives exec: it may be that of the program that started this one."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))
