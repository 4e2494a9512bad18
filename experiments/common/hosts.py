"""Hosts of a network on this machine: network namespaces with names of their own, joined by wires that may be slow.

Where the kernel has netem, a bridge joins them and netem delays what each sends. Where it has not, a process of ours is
the bridge: it passes on what comes from one TAP device to the others after the delay.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

BRIDGE, NETWORK = "jaxtrpo-br", "10.213.77"
MTU = 9000  # bytes; as the network of a cluster
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h


class Host(NamedTuple):
    """A network namespace with an address and a name."""

    index: int
    names: Path  # its /etc/hosts

    @property
    def name(self) -> str:
        """What it is called, as host and as namespace."""
        return f"jaxtrpo-{self.index}"

    @property
    def address(self) -> str:
        """Its IP address."""
        return f"{NETWORK}.{self.index + 1}"

    def start(self, command: Sequence[str], environment: Mapping[str, str], **more) -> subprocess.Popen:
        """Starts a process there."""
        # gloo listens at the address that the host's name has. `ip netns exec` has mounts of its own.
        inside = f'hostname {self.name} && mount --bind {self.names} /etc/hosts && exec "$@"'
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", inside, "sh", *command],
            env=dict(environment),
            **more,
        )


def why_not() -> str | None:
    """Returns why there can be no hosts here; None if there can."""
    if sys.platform != "linux" or os.geteuid() != 0 or any(shutil.which(name) is None for name in ("ip", "unshare")):
        return "network namespaces need Linux, root, ip and unshare"
    made = subprocess.run(["ip", "netns", "add", "jaxtrpo-try"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", "jaxtrpo-try"], capture_output=True)
    return None if made.returncode == 0 else f"no network namespace can be made: {made.stderr.strip()}"


@contextlib.contextmanager
def hosts(number: int, delay: float = 0.0) -> Iterator[list[Host]]:
    """While it lasts there are hosts, between which a packet takes `delay` milliseconds each way."""
    with contextlib.ExitStack() as stack:
        names = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "hosts"
        made = [Host(index, names) for index in range(number)]
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in made))
        for host in made:
            _ip("netns", "add", host.name)
            stack.callback(_ip, "netns", "delete", host.name)
        if delay and not has_netem():
            _join_by_process(stack, made, delay)
        else:
            _join_by_bridge(stack, made, delay)
        for host in made:
            _in(host, "ip", "link", "set", "lo", "up")
            _in(host, "ip", "link", "set", "eth0", "mtu", str(MTU), "up")
            _in(host, "ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        yield made


def has_netem() -> bool:
    """Whether the kernel can delay packets."""
    _ip("netns", "add", "jaxtrpo-try")
    try:
        tried = "ip netns exec jaxtrpo-try tc qdisc add dev lo root netem delay 1ms".split()
        return shutil.which("tc") is not None and subprocess.run(tried, capture_output=True).returncode == 0
    finally:
        _ip("netns", "delete", "jaxtrpo-try")


def _join_by_bridge(stack: contextlib.ExitStack, made: Sequence[Host], delay: float) -> None:
    _ip("link", "add", BRIDGE, "mtu", str(MTU), "type", "bridge")
    stack.callback(_ip, "link", "delete", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    for host in made:
        near = f"jaxtrpo-v{host.index}"
        _ip("link", "add", near, "mtu", str(MTU), "type", "veth", "peer", "name", "eth0", "netns", host.name)
        stack.callback(_ip, "link", "delete", near)  # the kernel takes longer to delete it with its namespace
        _ip("link", "set", near, "master", BRIDGE, "up")
        if delay:
            _in(host, "tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", f"{1000 * delay:.0f}us")


def _join_by_process(stack: contextlib.ExitStack, made: Sequence[Host], delay: float) -> None:
    devices = [f"jaxtrpo-t{host.index}" for host in made]
    command = [sys.executable, __file__, str(delay / 1000), *devices]
    wire = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
    stack.callback(wire.kill)  # before it is waited for
    assert wire.stdout is not None and wire.stdout.readline() == b"ready\n"
    for host, device in zip(made, devices, strict=True):
        _ip("link", "set", device, "netns", host.name, "name", "eth0")


def pass_on(seconds: float, devices: Sequence[str]) -> None:
    """Gives every packet from one TAP device to all others after the delay, for ever."""
    ends = [os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK) for _ in devices]
    for end, device in zip(ends, devices, strict=True):
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TAP | IFF_NO_PI))
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))  # it is on time, whatever the hosts do
    print("ready", flush=True)
    underway: list[tuple[float, int, int, bytes]] = []  # when it arrives, its number, from where
    number = 0
    while True:
        now = time.monotonic()
        while underway and underway[0][0] <= now:
            _, _, source, packet = heapq.heappop(underway)
            for end in ends:
                if end != source:
                    with contextlib.suppress(OSError):  # a host that is going down
                        os.write(end, packet)
        wait = max(underway[0][0] - time.monotonic(), 0) if underway else None
        for end in select.select(ends, (), (), wait)[0]:
            with contextlib.suppress(BlockingIOError):
                heapq.heappush(underway, (time.monotonic() + seconds, number, end, os.read(end, 65536)))
                number += 1


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _in(host: Host, *words: str) -> None:
    _ip("netns", "exec", host.name, *words)


if __name__ == "__main__":
    pass_on(float(sys.argv[1]), sys.argv[2:])
