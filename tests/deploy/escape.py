# SPDX-License-Identifier: Apache-2.0
"""What a program that has taken over glaked, or glake-mover, would try: says as JSON what the sandbox lets it do.

escape.py REPORT [PID OF GLAKED]
"""

import ctypes
import json
import os
import socket
import stat
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
# Of x86-64. Those of the first row work for any user outside.
CALLS = {
    "ptrace": (101, 0, 0, 0, 0), "unshare": (272, 0x10000000), "personality": (135, 0x0040000),
    "keyctl": (250, 0, -3, 0), "perf_event_open": (298, 0, 0, -1, -1, 0), "bpf": (321, 0, 0, 0),
    "pidfd_getfd": (438, -1, 0, 0), "mount": (165, 0, 0, 0, 0, 0), "umount": (166, b"/", 0),
    "pivot_root": (155, b"/", b"/"), "chroot": (161, b"/"), "init_module": (175, 0, 0, b""),
    "kexec_load": (246, 0, 0, 0, 0), "reboot": (169, 0, 0, 0, 0), "swapon": (167, b"/x", 0),
    "clock_settime": (227, 0, 0), "iopl": (172, 3), "quotactl": (179, 0, 0, 0, 0), "acct": (163, 0),
    "mknod": (133, b"/tmp/node", 0o020666, 0x103), "setuid": (105, 0),
}
FAMILIES = ("AF_INET", "AF_INET6", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_BLUETOOTH", "AF_CAN")


def try_call(number, *arguments):
    pid = os.fork()  # some would change the process
    if pid == 0:
        result = LIBC.syscall(ctypes.c_long(number), *[
            argument if isinstance(argument, bytes) else ctypes.c_long(argument) for argument in arguments])
        os._exit(0 if result >= 0 else min(ctypes.get_errno(), 255))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def try_socket(family):
    try:
        socket.socket(getattr(socket, family), socket.SOCK_DGRAM).close()
        return True
    except OSError:
        return False


def is_file(path):
    mode = os.lstat(path).st_mode
    return not stat.S_ISSOCK(mode) and not stat.S_ISLNK(mode)


def writable():
    """Folders where it could make a file, those below them aside, and files, but sockets, that it could change."""
    found = []
    for folder, folders, files in os.walk("/"):
        if folder == "/proc":
            folders[:] = []
        elif os.access(folder, os.W_OK):
            found.append(folder)
            folders[:] = []
        else:
            paths = [os.path.join(folder, name) for name in files]
            found += [path for path in paths if os.access(path, os.W_OK) and is_file(path)]
    return sorted(found)


def try_suid():
    path = "/tmp/suid"
    with open(path, "w", encoding="ascii"):
        pass
    try:
        os.chmod(path, 0o4755)
        return True
    except OSError:
        return False
    finally:
        os.unlink(path)


def try_read(path):
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def tell_manager():
    """As a child of the service: nothing of it may be heard."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.connect("/run/systemd/notify")
    for text in (b"FDSTOREREMOVE=1\nFDNAME=books", b"MAINPID=1", b"STATUS=forged", b"WATCHDOG=trigger"):
        manager.send(text)
    for _ in range(3):
        socket.send_fds(manager, [b"FDSTORE=1\nFDNAME=forged"], [0])


def main():
    with open("/proc/self/status", encoding="ascii") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    report = {
        "status": {key: status[key].strip() for key in ("CapBnd", "CapEff", "CapPrm", "CapAmb", "NoNewPrivs", "Seccomp")},
        "calls": {name: try_call(*call) for name, call in CALLS.items()},
        "attach": try_call(101, 16, int(sys.argv[2]), 0, 0) if len(sys.argv) > 2 else None,
        "families": [family for family in FAMILIES if try_socket(family)],
        "writable": writable(),
        "suid": try_suid(),
        "secrets": [path for path in ("/home/user/secret", "/root/secret", "/etc/shadow") if try_read(path)],
        "tmp": os.listdir("/tmp"),
    }
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(report, file)
    if len(sys.argv) > 2:
        tell_manager()


if __name__ == "__main__":
    main()
