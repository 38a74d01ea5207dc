#!/usr/bin/env python3
"""How compilers translate Hearth's GPU kernels, without a GPU: registers, spills, shared memory, occupancy and the instructions
of the inner loop, on AMD's RDNA3 and RDNA4 (Mesa's RADV, which believes in a card) and on NVIDIA's sm_90a (nvcc).

  offline.py setup             gets the compilers: packages of Debian sid and wheels of NVIDIA's, unpacked in the user's cache
  offline.py tables            compiles all kernels and writes docs/lab/gpu-kernels.json and .md
  offline.py plans             compiles the products for sm_90a with all plans that `gpu-kernels card` tries, and prints a line for each
  offline.py check             compiles all kernels and fails if one spills that did not, or loses a step of occupancy
  offline.py run CHIP COMMAND  runs a command with a card that does nothing: rdna3, rdna4, ada, or llvmpipe, which computes

`tables` and `check` need the program `gpu-kernels` with the feature `sources` (--program, or target/release). Needs Linux on x86-64,
apt, dpkg-deb and pip; no root.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hearth" / "gpu-tools"
SID, CUDA, APT = CACHE / "sid", CACHE / "cuda", CACHE / "apt"
LIBRARIES = SID / "usr/lib/x86_64-linux-gnu"
TABLES = ROOT / "docs/lab/gpu-kernels.json"
PACKAGES = ["mesa-vulkan-drivers", "mesa-drm-shim", "libvulkan1"]
WHEELS = ["nvcc", "crt", "runtime", "nvdisasm", "cccl"]
# The driver, the shim in front of it, and what both are told.
CHIPS = {
    "rdna3": ("radeon", "amdgpu", {"AMDGPU_GPU_ID": "navi31"}),
    "rdna4": ("radeon", "amdgpu", {"AMDGPU_GPU_ID": "gfx1201"}),
    "ada": ("nouveau", "nouveau", {"NOUVEAU_CHIPSET": "0x192"}),
    "llvmpipe": ("lvp", None, {}),
}
TARGETS = ["rdna3", "rdna4", "sm_90a"]


def run(command, **options):
    return subprocess.run([str(word) for word in command], check=True, **options)


def setup():
    """Unpacks packages of Debian's unstable release beside the system, and NVIDIA's compiler from PyPI."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (APT / folder).mkdir(parents=True, exist_ok=True)
    (APT / "state/status").touch()
    # The mirror that this system uses.
    found = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    ).stdout
    mirrors = [line.split("|")[1] for line in found.splitlines() if line.startswith("Debian|")]
    if not mirrors:
        sys.exit("apt has no mirror of Debian here; this needs a Debian system")
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (APT / "sources.list").write_text(f"deb [signed-by={keys}] {mirrors[0]} sid main\n")
    # The index of sid is valid for a week only, and mirrors may lag.
    (APT / "apt.conf").write_text(
        f'Dir::State "{APT}/state"; Dir::State::status "{APT}/state/status"; Dir::Cache "{APT}/cache";\n'
        f'Dir::Etc::sourcelist "{APT}/sources.list"; Dir::Etc::sourceparts "/dev/null"; Dir::Etc::parts "/dev/null";\n'
        'APT::Install-Recommends "false"; Acquire::Languages "none"; Acquire::Check-Valid-Until "false";\n'
        'Debug::NoLocking "true"; APT::Sandbox::User "";\n'
    )
    environment = {**os.environ, "APT_CONFIG": str(APT / "apt.conf")}
    run(["apt-get", "update", "-q"], env=environment)
    run(["apt-get", "install", "-y", "-q", "--download-only", *PACKAGES], env=environment)
    for package in sorted((APT / "cache/archives").glob("*.deb")):
        run(["dpkg-deb", "-x", package, SID])
    CUDA.mkdir(exist_ok=True)
    wheels = [f"nvidia-cuda-{name}" for name in WHEELS] + ["nvidia-nvvm"]
    run([sys.executable, "-m", "pip", "install", "--no-deps", "--upgrade", "--target", CUDA, *wheels])
    print(f"ready in {CACHE}")


def mesa_version():
    names = [path.name for path in (APT / "cache/archives").glob("mesa-vulkan-drivers_*.deb")]
    if not names or not SID.exists():
        sys.exit("the compilers are not here: run `offline.py setup`")
    return "Mesa " + sorted(names)[-1].split("_")[1]


def on_chip(chip, command, extra=None, **options):
    """Runs a program of this system with sid's libraries, driver and card."""
    driver, shim, settings = CHIPS[chip]
    mesa_version()
    library = {"radeon": "radeon", "nouveau": "nouveau", "lvp": "lvp"}[driver]
    icd = CACHE / f"{driver}.json"
    icd.write_text(json.dumps({
        "file_format_version": "1.0.0",
        "ICD": {"library_path": str(LIBRARIES / f"libvulkan_{library}.so"), "api_version": "1.4.0"},
    }))
    loader = [LIBRARIES / "ld-linux-x86-64.so.2", "--library-path", LIBRARIES]
    if shim:
        loader += ["--preload", LIBRARIES / f"lib{shim}_noop_drm_shim.so"]
    environment = {**os.environ, "VK_DRIVER_FILES": str(icd), "MESA_SHADER_CACHE_DISABLE": "1", **settings, **(extra or {})}
    return run([*loader, *command], env=environment, **options)


# What an instruction does, by the first pattern that its name matches.
KINDS = {
    "rdna": [
        ("matrix", r"v_wmma|v_swmmac"),
        ("shared", r"ds_"),
        ("memory", r"global_|buffer_|flat_|scratch_|s_load|s_buffer"),
        ("wait", r"s_wait|s_barrier|s_delay|s_nop|s_clause|s_sendmsg"),
        ("jump", r"s_cbranch|s_branch|s_endpgm"),
        ("convert", r"v_cvt"),
        ("float", r"v_(pk_|dual_)?(fma|fmac|fmaak|fmamk|mul_f|add_f|sub_f|max_f|min_f|max_num|min_num|maximum|minimum|exp|log|rcp|sqrt|rsq|mad|cmp_\w+_f|fmac_f)|v_dual_"),
        ("scalar", r"s_"),
        ("integer", r"v_"),
    ],
    "sass": [
        ("matrix", r"HMMA|IMMA|HGMMA"),
        ("shared", r"LDS|STS|ATOMS"),
        ("memory", r"LDG|STG|LD\b|ST\b|LDL|STL|LDC|ULDC|LDCU"),
        ("wait", r"BAR|DEPBAR|NOP|WARPSYNC|MEMBAR|ERRBAR|CCTL"),
        ("jump", r"BRA|BSSY|BSYNC|EXIT|CALL|RET|BREAK"),
        ("convert", r"F2F|F2I|I2F|HADD2\.F32|F2FP|I2FP"),
        ("float", r"FFMA|FMUL|FADD|FMNMX|FSETP|FSEL|MUFU|HFMA2|HMUL2|HADD2|FSET|FCHK|FSWZADD"),
        ("scalar", r"U[A-Z]|R2UR"),
        ("integer", r"."),
    ],
}


def kind(name, isa):
    return next(kind for kind, pattern in KINDS[isa] if re.match(pattern, name))


def inner_loop(code, isa):
    """The instructions by kind of the innermost loop that does most. `code` has labels, and instructions with the label that they
    jump to, or None."""
    places = {item: at for at, item in enumerate(code) if isinstance(item, str)}
    loops = [(places[target], at) for at, item in enumerate(code) if not isinstance(item, str) and (target := item[1]) in places and places[target] < at]
    innermost = [(start, end) for start, end in loops if not any(start <= a and b <= end and (a, b) != (start, end) for a, b in loops)]
    best = Counter()
    for start, end in innermost:
        counts = Counter(kind(item[0], isa) for item in code[start:end + 1] if not isinstance(item, str))
        if (counts["matrix"], counts["float"], sum(counts.values())) > (best["matrix"], best["float"], sum(best.values())):
            best = counts
    return dict(sorted(best.items()))


def of_amd(chip, program):
    """Kernels by case, from what RADV prints."""
    printed = on_chip(
        chip, [program, "launch"], {"RADV_DEBUG": "shaders,shaderstats,nocache"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        errors="replace",
    ).stderr
    found, case, kernel = {}, None, None
    for block in re.split(r"^(?=@)", printed, flags=re.M):
        head, _, text = block.partition("\n")
        if head.startswith("@case "):
            case = head[6:]
        elif head.startswith("@launch "):
            kernel = head[8:]
            statistics = dict(re.findall(r"^([A-Z][A-Za-z ]+): (\d+)$", text, flags=re.M))
            if "VGPRs" not in statistics:
                continue  # Compiled before.
            code = []
            assembly = text[text.rfind("disasm:"):]
            for line in assembly.splitlines():
                if label := re.match(r"(BB\d+):", line):
                    code.append(label[1])
                elif instruction := re.match(r"\s+([a-z]\w+)\b([^;]*)", line):
                    target = re.search(r"BB\d+", instruction[2])
                    code.append((instruction[1], target[0] if target else None))
            found[name_of(case, kernel, found)] = {
                "registers": int(statistics["VGPRs"]),
                "spills": int(statistics.get("Spilled VGPRs", 0)) + int(statistics.get("Spilled SGPRs", 0)),
                "shared": int(statistics.get("LDS size", 0)),
                "occupancy": int(statistics["Subgroups per SIMD"]),
                "instructions": int(statistics.get("Instructions", 0)),
                "loop": inner_loop(code, "rdna"),
            }
    return found


def name_of(case, kernel, known):
    """A name of a kernel of a case: one case may launch a kernel in two forms."""
    name, n = f"{case} · {kernel}", 2
    while name in known:
        name, n = f"{case} · {kernel} {n}", n + 1
    return name


def cuda_tool(name):
    found = sorted(CUDA.rglob(f"bin/{name}"))
    if not found:
        sys.exit("the compilers are not here: run `offline.py setup`")
    return found[0]


def nvcc_version():
    printed = subprocess.run([cuda_tool("nvcc"), "--version"], capture_output=True, text=True, check=True).stdout
    return "nvcc " + re.search(r"V([\d.]+)", printed)[1]


def blocks_of(registers, lanes, shared):
    """Workgroups on a multiprocessor of sm_90: of 65,536 registers, 2,048 lanes, 228 KB of shared memory, 32 workgroups."""
    warps = (lanes + 31) // 32
    of_warp = (registers * 32 + 255) // 256 * 256
    by_shared = (228 << 10) // (shared + 1024)
    return min(65536 // (of_warp * warps) if registers else 32, 64 // warps, by_shared, 32)


def of_nvidia(program, *flags):
    """Kernels by case, compiled by nvcc."""
    sources = CACHE / "sources"
    for old in sources.glob("*") if sources.exists() else []:
        old.unlink()
    run([program, "sources", sources, *flags], stderr=subprocess.DEVNULL)
    includes = [f"-I{path}" for path in {path.parent for name in ("mma.h", "cuda_runtime.h", "crt/host_config.h", "nv/target") for path in CUDA.rglob(name) if path.parent.name != "crt"}]
    includes += [f"-I{path.parent.parent}" for path in CUDA.rglob("crt/host_config.h")] + [f"-I{path.parent.parent}" for path in CUDA.rglob("nv/target")]

    def compiled(line):
        source = sources / line["file"]
        binary = source.with_suffix(".cubin")
        command = [cuda_tool("nvcc"), "-arch=sm_90a", "-cubin", "-O3", "-Xptxas=-v", "-w", *includes, "-o", binary, source]
        built = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if built.returncode:
            sys.exit(f"nvcc rejects {source} ({line['case']}):\n{built.stderr[-2000:]}")
        registers = int(re.search(r"Used (\d+) registers", built.stderr)[1])
        spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", built.stderr))
        fixed = re.search(r"(\d+) bytes smem", built.stderr)
        shared = line["shared_bytes"] + (int(fixed[1]) if fixed else 0)
        assembly = subprocess.run([cuda_tool("nvdisasm"), "-c", binary], capture_output=True, text=True, check=True).stdout
        code = []
        for text in assembly.splitlines():
            if label := re.match(r"\s*(\.L\w+):", text):
                code.append(label[1])
            elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)([^;]*);", text):
                target = re.search(r"\.L\w+", instruction[2])
                code.append((instruction[1], target[0] if target and instruction[1].startswith("BRA") else None))
        return line, {
            "registers": registers,
            "spills": spills,
            "shared": shared,
            "occupancy": blocks_of(registers, line["lanes"], shared),
            "instructions": sum(not isinstance(item, str) for item in code),
            "loop": inner_loop(code, "sass"),
        }

    lines = [json.loads(line) for line in (sources / "kernels.jsonl").read_text().splitlines()]
    found = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for line, kernel in pool.map(compiled, lines):
            found[name_of(line["case"], line["kernel"], found)] = kernel
    return found


def measured(program, targets):
    """The tables of these targets."""
    tables = {}
    for target in targets:
        if target == "sm_90a":
            tables[target] = {"compiler": nvcc_version(), "kernels": of_nvidia(program)}
        else:
            tables[target] = {"compiler": f"{mesa_version()}, RADV", "kernels": of_amd(target, program)}
        print(f"{target}: {len(tables[target]['kernels'])} kernels, {tables[target]['compiler']}", file=sys.stderr)
    return tables


def losses(now, before):
    """What is worse than before, target by target; tables of other compilers are not compared."""
    worse = []
    for target, table in now.items():
        if target not in before or before[target]["compiler"] != table["compiler"]:
            print(f"{target}: not compared, the table in the repository is of another compiler", file=sys.stderr)
            continue
        for name, kernel in table["kernels"].items():
            old = before[target]["kernels"].get(name)
            if kernel["spills"] > (old["spills"] if old else 0):
                worse.append(f"{target}: `{name}` spills {kernel['spills']} (before: {old['spills'] if old else 'new'})")
            if old and kernel["occupancy"] < old["occupancy"]:
                worse.append(f"{target}: `{name}` has occupancy {kernel['occupancy']} (before: {old['occupancy']})")
    return worse


def write(tables):
    """The tables as JSON, a line for each kernel, and for readers."""
    lines = []
    for target, table in tables.items():
        kernels = ",\n".join(f"    {json.dumps(name, ensure_ascii=False)}: {json.dumps(kernel)}" for name, kernel in table["kernels"].items())
        lines.append(f'  "{target}": {{"compiler": {json.dumps(table["compiler"])}, "kernels": {{\n{kernels}\n  }}}}')
    TABLES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    page = [
        "# GPU: how the kernels are compiled",
        "",
        "Made by `model/kernels-alone/gpu/offline.py tables`, without a GPU ([README](../../model/kernels-alone/README.md)): do not edit. A row is a kernel",
        "as one operation of a real step launches it: the shape of Llama 1B, and of GPT-2 124M where it trains.",
        "",
        "- **Registers** of a lane. **Spills**: registers that do not fit (bytes on sm_90a). **Shared**: bytes of shared memory.",
        "- **Occupancy**: on RDNA, subgroups of a SIMD at a time, as RADV counts them (at most 32); on sm_90a, workgroups on a multiprocessor.",
        "- **Loop**: the instructions of the innermost loop that multiplies most, as the compiler unrolled it, by kind.",
        "- A form that two operations share is listed once, under the first.",
    ]
    for target, table in tables.items():
        page += ["", f"## {target} ({table['compiler']})", "", "| operation · kernel | registers | spills | shared | occupancy | loop |", "| --- | --- | --- | --- | --- | --- |"]
        for name, kernel in table["kernels"].items():
            loop = ", ".join(f"{kind} {n}" for kind, n in kernel["loop"].items())
            total = sum(kernel["loop"].values())
            page.append(f"| {name} | {kernel['registers']} | {kernel['spills']} | {kernel['shared']} | {kernel['occupancy']} | {f'{total}: {loop}' if total else ''} |")
    TABLES.with_suffix(".md").write_text("\n".join(page) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup")
    for name in ("tables", "check", "plans"):
        command = commands.add_parser(name)
        command.add_argument("--program", type=Path, default=Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/gpu-kernels")
        command.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS)
    command = commands.add_parser("run")
    command.add_argument("chip", choices=CHIPS)
    command.add_argument("rest", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.command == "setup":
        setup()
    elif arguments.command == "run":
        on_chip(arguments.chip, arguments.rest)
    elif arguments.command == "plans":
        for name, kernel in of_nvidia(arguments.program, "--plans").items():
            total, matrix = sum(kernel["loop"].values()), kernel["loop"].get("matrix", 0)
            if matrix:
                print(f"{name}: {total / matrix:.1f} instructions for a matrix instruction ({total}, {matrix}), {kernel['registers']} registers, {kernel['spills']} bytes of spills, {kernel['occupancy']} workgroups")
    else:
        before = json.loads(TABLES.read_text()) if TABLES.exists() else {}
        now = measured(arguments.program, arguments.targets)
        if worse := losses(now, before):
            print("\n".join(worse))
        if arguments.command == "tables":
            write({**before, **now})
        elif worse:
            sys.exit(1)


if __name__ == "__main__":
    main()
