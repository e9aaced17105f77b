"""The tools that the scenarios need beyond Python's packages: what is there, and how it is fetched.

They are used only if `KRAPPY_COMPAT=1` is set, as `make compat` does: the suite that always runs needs none of them.

`python -m tests.compat.tools` fetches kafkajs by npm and Java's jars by Maven into `.cache/compat`, and compiles the
Java agent. With `--programs`, as `make compat` runs it, it also fetches programs that were written for Kafka: more
jars, and Python packages by pip. It says what it could not fetch, and the scenarios are skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "compat"
FETCH_SECONDS = 600
WANTED = os.environ.get("KRAPPY_COMPAT") == "1"
Profile = Literal["clients3", "clients4", "kafka", "streams", "flink", "connect", "delta"]
CLIENTS: tuple[Profile, ...] = ("clients3", "clients4", "kafka")
PROGRAMS: tuple[Profile, ...] = ("streams", "flink", "connect", "delta")
Packages = Literal["streams", "delta", "sslyze"]
PACKAGES: tuple[Packages, ...] = ("streams", "delta", "sslyze")  # python/*.txt: each becomes a virtual environment


class Missing(Exception):
    """A tool is not there; says which one, and what to do."""


def wanted(what: str) -> None:
    """Raises Missing unless this run is one with all tools."""
    if not WANTED:
        raise Missing(f"{what} is tested by: make compat")


def kcat() -> str:
    """The path of kcat. Raises Missing."""
    return _tool("kcat", "Debian's and Homebrew's package is called kcat")


def node() -> tuple[str, Path]:
    """Node's path, and the folder whose node_modules has kafkajs. Raises Missing."""
    program = _tool("node", "Node.js 18 or newer")
    if not (CACHE / "node" / "node_modules" / "kafkajs").is_dir():
        raise Missing("kafkajs is not installed: make compat fetches it by npm")
    return program, CACHE / "node"


def java(profile: Profile) -> tuple[str, str]:
    """Java's path, and the class path of a profile of java/pom.xml. Raises Missing."""
    program = _tool("java", "Java 17 or newer")
    folder = CACHE / "java" / profile
    if not (folder / ".complete").exists():
        raise Missing(f"the jars of {profile} are not there: make compat fetches them by Maven")
    return program, f"{folder}/*:{CACHE / 'java' / 'classes'}"


def java_agent(profile: Profile) -> tuple[str, str]:
    """Java's path, and the class path, when the agent has been compiled. Raises Missing."""
    found = java(profile)
    if not (CACHE / "java" / "classes" / "Agent.class").exists():
        raise Missing("the Java agent is not compiled: make compat does it")
    return found


def javac(profile: Profile, source: Path, classes: Path) -> None:
    """Compiles a class for the class path of a profile. Raises Missing, and AssertionError with what javac says."""
    program = _tool("javac", "a Java development kit, 17 or newer")
    _, path = java(profile)
    done = subprocess.run(
        [program, "-cp", path, "-d", str(classes), str(source)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def python(packages: Packages) -> Path:
    """The Python of a virtual environment with these packages. Raises Missing."""
    folder = CACHE / "python" / packages
    if not (folder / ".complete").exists():
        raise Missing(
            f"the packages of tests/compat/python/{packages}.txt are not there: make compat fetches them by pip"
        )
    return folder / "bin" / "python"


def postgres() -> Path:
    """The folder of the programs of PostgreSQL 10 or newer, with psql. Raises Missing."""
    found = [Path(name).parent for name in (shutil.which("initdb"), shutil.which("psql")) if name]
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name))
    for folder in (*reversed(debian), *found):
        if all((folder / name).exists() for name in ("initdb", "postgres", "psql")):
            return folder
    raise Missing("no PostgreSQL: on Debian, apt-get install postgresql")


def go_agent(client: str) -> list[str]:
    """The command of the program with Go's clients, for one of them: franz-go, sarama or kafka-go. Raises Missing."""
    program = CACHE / "go" / "clients"
    if not program.exists():
        raise Missing("the Go agent is not built: make compat does it")
    return [str(program), client]


def _tool(name: str, hint: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Missing(f"no {name} on the PATH ({hint})")
    return found


def fetch_node() -> None:
    """npm ci of the committed lockfile. Raises Missing."""
    npm = _tool("npm", "it comes with Node.js")
    folder = CACHE / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "node" / name, folder / name)
    _run([npm, "ci", "--no-audit", "--no-fund", "--silent"], folder)


def fetch_java(profile: Profile) -> None:
    """Maven's dependency:copy-dependencies of one profile. Raises Missing."""
    maven = _tool("mvn", "Apache Maven")
    folder = CACHE / "java" / profile
    stamp = folder / ".complete"
    pom = HERE / "java" / "pom.xml"
    if stamp.exists() and stamp.read_text() == pom.read_text():
        return
    shutil.rmtree(folder, ignore_errors=True)
    _run(
        [
            maven,
            "-B",
            "-q",
            "-f",
            str(pom),
            "-P",
            profile,
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder}",
        ],
        HERE,
    )
    stamp.write_text(pom.read_text())


def fetch_python(packages: Packages) -> None:
    """A virtual environment with the packages that a file of python/ lists. Raises Missing."""
    wanted_packages = HERE / "python" / f"{packages}.txt"
    folder = CACHE / "python" / packages
    stamp = folder / ".complete"
    if stamp.exists() and stamp.read_text() == wanted_packages.read_text():
        return
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)], HERE)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*install, "--requirement", str(wanted_packages)], HERE)
    if packages == "delta":
        _run([*install, "--editable", f"{HERE.parent.parent}[spark]"], HERE)
    stamp.write_text(wanted_packages.read_text())


def compile_agent() -> None:
    """Compiles the agent against the older client, so that one program runs with both. Raises Missing."""
    javac("clients3", HERE / "java" / "Agent.java", CACHE / "java" / "classes")


def build_go_agent() -> None:
    """go build, with the modules of the committed go.sum. Raises Missing."""
    go = _tool("go", "Go 1.26 or newer")
    _run([go, "build", "-o", str(CACHE / "go" / "clients"), "."], HERE / "go")


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{command[0]} has not ended after {FETCH_SECONDS} s") from None
    if done.returncode != 0:
        raise Missing(f"{' '.join(command)}\nfailed: {(done.stdout + done.stderr)[-2000:]}")


def main() -> int:
    """Fetches all that can be fetched; 0 even when something is missing, which is said."""
    write = sys.stderr.write
    try:
        kcat()
    except Missing as reason:
        write(f"kcat: {reason}\n")
    try:
        fetch_node()
    except Missing as reason:
        write(f"kafkajs: {reason}\n")
    programs = "--programs" in sys.argv[1:]
    for profile in (*CLIENTS, *(PROGRAMS if programs else ())):
        try:
            fetch_java(profile)
            if profile == "clients3":
                compile_agent()
        except Missing as reason:
            write(f"Java, {profile}: {reason}\n")
    for packages in PACKAGES if programs else ():
        try:
            fetch_python(packages)
        except Missing as reason:
            write(f"Python, {packages}: {reason}\n")
    try:
        build_go_agent()
    except Missing as reason:
        write(f"Go's clients: {reason}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
