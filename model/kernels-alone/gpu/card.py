#!/usr/bin/env python3
"""Measures a card on a machine that has nothing of Hearth's and can download nothing: everything is packed before.

  card.py pack                 packs the programs of target/release (or --target DIR) into the folder .card: stripped and compressed,
                               with the Vulkan loader
  card.py run --out DIR        on the machine with the card: unpacks, looks for the driver, and runs `gpu-kernels card`; the lines are
                               in DIR/card.jsonl, and what programs say of errors in DIR/card.log
  card.py run --tiny           the same on a software adapter, with tiny operands and without peers, within a minute: the rehearsal

Build first, for Vulkan (README.md beside this folder). The tree must be at most 64 MiB in some places: `card.py pack` says how large
the folder is. Needs Python 3.9 or later, and for `pack` strip, apt and dpkg-deb.
"""

import argparse
import concurrent.futures
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKED = ROOT / ".card"
PROGRAMS = ["gpu-kernels", "hearth", "hearth-train"]
# For programs; packing takes minutes, unpacking seconds.
FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 64 << 20}]
# Where a container finds NVIDIA's driver.
DRIVERS = ["/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json", "/usr/share/vulkan/icd.d/nvidia_icd.json"]


def pack(args):
    PACKED.mkdir(exist_ok=True)

    def compress(name):
        source, stripped = args.target / name, PACKED / name
        if not source.exists():
            sys.exit(f"{source} is missing: build the programs first, as model/kernels-alone/README.md says")
        subprocess.run(["strip", "-o", stripped, source], check=True)
        packed = PACKED / f"{name}.xz"
        packed.write_bytes(lzma.compress(stripped.read_bytes(), filters=FILTERS))
        stripped.unlink()
        return packed

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        packed = list(pool.map(compress, PROGRAMS))
    subprocess.run(["apt-get", "download", "-q", "libvulkan1"], cwd=PACKED, check=True)
    (loader,) = sorted(PACKED.glob("libvulkan1_*.deb"))[-1:]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", loader, folder], check=True)
        (library,) = [path for path in Path(folder).rglob("libvulkan.so.1.*") if not path.is_symlink()]
        shutil.copy(library, PACKED / "libvulkan.so.1")
    for old in PACKED.glob("*.deb"):
        old.unlink()
    size = sum(path.stat().st_size for path in PACKED.iterdir())
    print(f"{PACKED}: {size / 2**20:.1f} MiB ({', '.join(f'{path.name} {path.stat().st_size / 2**20:.1f}' for path in packed)})")


def unpack(folder):
    def decompress(name):
        program = folder / name
        program.write_bytes(lzma.decompress((PACKED / f"{name}.xz").read_bytes()))
        program.chmod(0o755)

    with concurrent.futures.ThreadPoolExecutor(len(PROGRAMS)) as pool:
        list(pool.map(decompress, PROGRAMS))


def has_loader():
    printed = subprocess.run(["sh", "-c", "ldconfig -p 2>/dev/null || /sbin/ldconfig -p"], capture_output=True, text=True).stdout
    return "libvulkan.so.1" in printed


def run(args):
    begun = time.monotonic()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="hearth-card-"))
    unpack(folder)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if not has_loader():
        shutil.copy(PACKED / "libvulkan.so.1", folder)
        environment["LD_LIBRARY_PATH"] = f"{folder}:{environment.get('LD_LIBRARY_PATH', '')}"
    driver = next((path for path in DRIVERS if Path(path).exists()), None)
    if driver and not args.tiny:
        environment.setdefault("VK_DRIVER_FILES", driver)
    print(f"unpacked in {time.monotonic() - begun:.1f} s on {platform.platform()}; driver {environment.get('VK_DRIVER_FILES', 'by default')}", flush=True)
    # Whatever is wrong shows here, in a second.
    device = "wgpu-software" if args.tiny else "gpu"
    checked = subprocess.run([folder / "hearth", "doctor", "--device", device], env=environment, text=True, capture_output=True, timeout=60)
    print(checked.stdout + checked.stderr, flush=True)
    if checked.returncode:
        sys.exit("there is no such device: nothing was measured")
    seconds = args.seconds - int(time.monotonic() - begun)
    command = [folder / "gpu-kernels", "card", "--out", out / "card.jsonl", "--seconds", seconds, "--device", device]
    hearth, train, python = folder / "hearth", folder / "hearth-train", sys.executable
    if args.tiny:
        command += ["--size", "tiny"]
        ends = [f"{train} bench --json --device wgpu-software --preset tiny --vocab-size 65 --steps 1"]
        peers = [f"{python} model/kernels-alone/gpu/peers.py --tiny"]
    else:
        bench = f"{hearth} bench --random docs/shapes/llama-1b --device gpu"
        trained = f"{train} bench --json --device gpu --preset gpt2-124m --vocab-size 50257 --set data.micro_batch_size=8 --set data.tokens_per_step=8192"
        ends = [f"{bench} --dtype f16 --batch 1 16 64", f"{trained} --set optim.precision=bf16", f"{bench} --quantize q8 --batch 1", f"{bench} --quantize q4 --batch 1", trained]
        peers = [
            f"{python} model/kernels-alone/gpu/peers.py",
            f"{python} training/benches/measure_peers.py {train} --device gpu --peer gpt2-124m-gpu-bf16 --steps 20",
        ]
    command += [word for end in ends for word in ("--run", end)] + [word for peer in peers for word in ("--peer", peer)]
    if args.parts:
        command += ["--parts", args.parts]
    with open(out / "card.log", "w") as log:
        measured = subprocess.Popen([str(word) for word in command], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=log)
        try:
            status = measured.wait(timeout=seconds + 40)
        except subprocess.TimeoutExpired:
            measured.kill()
            status = "killed"
    lines = (out / "card.jsonl").read_text().splitlines() if (out / "card.jsonl").exists() else []
    failed = [line for line in lines if '"failed"' in line]
    print("\n".join(failed[-20:]))
    print((out / "card.log").read_text()[-3000:])
    print(f"{len(lines)} lines, {len(failed)} with `failed`, status {status}, {time.monotonic() - begun:.0f} s")
    shutil.rmtree(folder)
    sys.exit(0 if status == 0 else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("pack")
    command.add_argument("--target", type=Path, default=Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release")
    command = commands.add_parser("run")
    command.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "card")))
    command.add_argument("--seconds", type=int, default=510, help="for everything, unpacking too")
    command.add_argument("--parts", help="as `gpu-kernels card --parts`")
    command.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    {"pack": pack, "run": run}[args.command](args)


if __name__ == "__main__":
    main()
