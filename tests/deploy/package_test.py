"""The packages of scripts/package: each is installed away from the build, and its server answers one request.

The archive runs in a root with nothing but glibc. The Debian package is installed, upgraded and removed in a copy of this machine's
root. The wheel is installed in a new virtual environment. With TANDEM_NIGHT=1 (scripts/test --night) the Debian package is also
installed by apt in a new Debian 12, and checked by lintian.
"""

import base64
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

# One model of the repository, which LibTorch computes.
CONFIG = """
models {{ name: "small" path: "{models}/code-small" }}
deployments {{ name: "small" large: "small" }}
server {{ listen: "127.0.0.1:0" http: "127.0.0.1:0" }}
"""
ASK = ["generate", "--prompt=def add(a, b):", "--max-new-tokens=12", "--temperature=0"]
# Part of every Linux system with glibc; tandem-pull needs libgcc_s.
GLIBC = "ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libresolv.so.2 libutil.so.1 libgcc_s.so.1"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

night = pytest.mark.skipif(
    not os.environ.get("TANDEM_NIGHT"), reason="takes minutes; scripts/test --night runs it"
)


def need(*tools):
    for tool in tools:
        if not shutil.which(tool):
            pytest.skip(f"no {tool}")


def run(*command, timeout=300, **options):
    """Standard output; the test fails with the error output of a failed command."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=timeout, **options
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(binaries, tmp_path_factory):
    """The folder of the packages."""
    build = binaries.resolve().parent
    if not (build / "CPackConfig.cmake").exists():
        pytest.skip(f"{build} was configured without packages")
    for program in ("tandem", "tandem-pull"):
        if not (binaries / program).exists():
            pytest.skip(f"no {program} in {binaries}")
    need("dpkg-deb", "dpkg-shlibdeps")
    out = tmp_path_factory.mktemp("packages")
    print(run(ROOT / "scripts/package", build, "--out", out, timeout=600))
    yield out
    shutil.rmtree(out)


def one(folder, pattern):
    (found,) = folder.glob(pattern)
    return found


@pytest.fixture(scope="module")
def expected(binaries, start_server):
    """What the server of the build folder answers."""
    config = CONFIG.format(models=ROOT / "models").replace('listen: "127.0.0.1:0"', "")
    server = start_server(config.replace('http: "127.0.0.1:0"', ""))
    text = run(binaries / "tandem", *ASK, f"--server={server.grpc}")
    server.stop()
    return text


@contextlib.contextmanager
def serving(command, ports, **options):
    """A server by this command, which writes its ports to the file. It must end with status 0."""
    with subprocess.Popen(
        list(map(str, command)), stderr=subprocess.PIPE, text=True, **options
    ) as process:
        try:
            end = time.monotonic() + 120
            while not ports.exists():
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < end, "not ready after 120 s"
                time.sleep(0.02)
            yield dict(line.split("=", 1) for line in ports.read_text().split())["grpc"]
            process.terminate()
            assert process.wait(60) == 0, process.stderr.read()
        finally:
            process.kill()


def bare_root(folder):
    """A root with glibc and nothing else: no shell, no libstdc++."""
    libraries = folder / "lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("lib64", "dev", "proc", "tmp", "etc"):
        (folder / name).mkdir()
    for name in GLIBC.split():
        shutil.copy(Path("/lib/x86_64-linux-gnu") / name, libraries)
    shutil.move(libraries / "ld-linux-x86-64.so.2", folder / "lib64")
    return folder


def inside(root, *command):
    """The command in the root, as an unprivileged user could run it. The process becomes the command."""
    enter = 'mount --rbind /dev "$0/dev" && mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", enter, root, *command]


@pytest.fixture
def namespaces():
    need("unshare")
    tried = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "true"], capture_output=True, text=True
    )
    if tried.returncode != 0:
        pytest.skip(f"no user namespaces: {tried.stderr.strip()}")


def test_the_archive_runs_in_a_root_with_only_glibc(packages, expected, namespaces, tmp_path):
    need("zstd")
    root = bare_root(tmp_path / "root")
    (root / "any where").mkdir()
    run("tar", "--zstd", "-xf", one(packages, "*.tar.zst"), "-C", root / "any where")
    (tree,) = (root / "any where").iterdir()
    shutil.copytree(ROOT / "models/code-small", root / "models/code-small")
    (root / "config").write_text(CONFIG.format(models="/models"), "utf-8")
    programs = Path("/any where") / tree.name / "bin"
    env = {"PATH": PATH}
    for program in ("tandem-server", "tandem", "tandem-pull"):
        assert "0." in run(*inside(root, programs / program, "--version"), env=env)
    server = [programs / "tandem-server", "--config=/config"]
    assert "no errors" in run(*inside(root, *server, "--check"), env=env)
    ports = root / "tmp/ports"
    with serving(inside(root, *server, "--port-file=/tmp/ports"), ports, env=env) as address:
        answer = run(*inside(root, programs / "tandem", *ASK, f"--server={address}"), env=env)
    assert answer == expected
    shutil.rmtree(root / "any where")


def listing(archive):
    """Path -> (mode, owner, size) of a Debian package."""
    found = {}
    for line in run("dpkg-deb", "-c", archive).splitlines():
        mode, owner, size, _, _, path = line.split(None, 5)
        found[path.split(" -> ")[0].removeprefix(".")] = mode, owner, int(size)
    return found


@pytest.fixture(scope="module")
def contents(packages, tmp_path_factory):
    """The files of the Debian package."""
    folder = tmp_path_factory.mktemp("contents")
    run("dpkg-deb", "-x", one(packages, "*.deb"), folder)
    yield folder
    shutil.rmtree(folder)


def test_the_debian_package_has_what_it_needs(packages, contents, tmp_path):
    archive = one(packages, "*.deb")
    files = listing(archive)
    for path in [
        "/usr/bin/tandem-server",
        "/usr/bin/tandem",
        "/usr/bin/tandem-pull",
        "/usr/lib/tandem/libtorch_cpu.so",
        "/usr/lib/systemd/system/tandem.service",
        "/usr/lib/sysusers.d/tandem.conf",
        "/usr/share/doc/tandem/copyright",
        "/usr/share/doc/tandem/sbom.cdx.json",
        "/usr/share/doc/tandem/THIRD_PARTY_LICENCES.txt",
        "/usr/share/tandem/proto/tandem/v1/generation.proto",
        "/usr/share/tandem/observability/alerts.yml",
        "/etc/tandem/deployment.textproto",
    ]:
        assert path in files, path
    assert not [path for path in files if re.match(r"/(root|home|work|tmp|usr/local)\b", path)]
    assert {owner for _, owner, _ in files.values()} == {"root/root"}
    assert not [path for path, (mode, _, _) in files.items() if "w" in mode[5:]]
    assert not [path for path in files if "libgrpc" in path], "a package of Debian"
    run("dpkg-deb", "-e", archive, tmp_path / "control")
    control = (tmp_path / "control/control").read_text("utf-8")
    depends = re.search(r"^Depends: (.+)$", control, re.MULTILINE)[1]
    names = {part.split()[0] for part in depends.split(", ")}
    assert names >= {"libc6", "libgrpc++1.51", "libprotobuf32", "libstdc++6", "systemd"}, depends
    assert not [name for name in names if "torch" in name or "gomp" in name], depends
    conffiles = (tmp_path / "control/conffiles").read_text("utf-8")
    assert conffiles.split() == ["/etc/tandem/deployment.textproto"]
    unit = (contents / "usr/lib/systemd/system/tandem.service").read_text("utf-8")
    assert unit.startswith("[Unit]\n") and "/usr/local" not in unit
    assert "ExecStart=/usr/bin/tandem-server --config /etc/tandem/" in unit
    statement = (contents / "usr/share/doc/tandem/copyright").read_text("utf-8")
    assert "No licence has been chosen" in statement and "must not be published" in statement
    for name in ("bin/tandem-server", "bin/tandem", "lib/tandem/libtorch_cpu.so"):
        header = run("readelf", "-d", contents / "usr" / name)
        (search,) = re.findall(r"R(?:UN)?PATH\) .*\[(.*)\]", header)
        assert search == ("$ORIGIN" if "lib/" in name else "$ORIGIN/../lib/tandem")


def bill_of(document):
    return {one["name"]: one for one in document["components"]}


def test_the_bill_of_materials_names_pinned_versions(contents, binaries, tmp_path):
    folder = contents / "usr/share/doc/tandem"
    text = (folder / "sbom.cdx.json").read_text("utf-8")
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    found = bill_of(document)
    pins = (ROOT / "scripts/versions.env").read_text("utf-8")
    assert f"torch=={found['torch']['version']}\n" in pins
    assert f'nvidia-cuda-cupti=={found["nvidia-cuda-cupti"]["version"]}"' in pins
    lock = (ROOT / "engine/text/rust/Cargo.lock").read_text("utf-8")
    tokenizers = found["tokenizers"]
    assert f'name = "tokenizers"\nversion = "{tokenizers["version"]}"\n' in lock
    assert f'checksum = "{tokenizers["hashes"][0]["content"]}"' in lock
    assert not {"tempfile", "proptest", "syn", "cc"} & set(found), "not linked"
    places = {name: one["properties"][0]["value"] for name, one in found.items()}
    assert places["torch"] == places["rustls"] == "inside"
    assert places["libgrpc++1.51"] == "package of the system"
    assert set(document["dependencies"][0]["dependsOn"]) == {
        one["bom-ref"] for one in document["components"]
    }
    licences = (folder / "THIRD_PARTY_LICENCES.txt").read_text("utf-8")
    for title in (
        f"torch {found['torch']['version']}",
        "rustls ",
        "nlohmann-json3-dev ",
        "rust-std ",
    ):
        assert f"\n{title}" in licences
    again = tmp_path / "again"
    run(ROOT / "scripts/sbom", binaries.resolve().parent, "--out", again, "--delivery", "deb")
    assert (again / "sbom.cdx.json").read_text("utf-8") == text


def newer(archive, folder):
    """The same package with a higher version and another configuration file."""
    tree = folder / "newer"
    run("dpkg-deb", "-R", archive, tree)
    control = tree / "DEBIAN/control"
    text = re.sub(r"^Version: (.+)$", r"Version: \1+newer", control.read_text(), flags=re.MULTILINE)
    control.write_text(text)
    with (tree / "etc/tandem/deployment.textproto").open("a") as file:
        file.write("# A comment of the newer version.\n")
    made = folder / "newer.deb"
    run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "-b", tree, made)
    shutil.rmtree(tree)
    return made


# A root whose changes are in memory. $1: a folder.
OVERLAY = r"""
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs tmpfs "$1/space"
mkdir "$1/space/upper" "$1/space/work" "$1/space/root"
root=$1/space/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/space/upper,workdir=$1/space/work" "$root"
mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev"
"""

# Install, start, answer, upgrade, remove, purge. $1: a folder with the packages, the configuration and the model.
LIFE = (
    OVERLAY
    + r"""
mkdir "$root/given" && mount --bind "$1/given" "$root/given"
for hidden in root home; do mount -t tmpfs tmpfs "$root/$hidden"; done
inside() { chroot "$root" env -i PATH="$PATH" DEBIAN_FRONTEND=noninteractive "$@"; }
config=$root/etc/tandem/deployment.textproto

inside dpkg -i /given/tandem.deb
inside getent passwd tandem
! inside tandem-server --config /etc/tandem/deployment.textproto --check || exit 1
cp "$1/given/config" "$config"
inside tandem-server --config /etc/tandem/deployment.textproto --check
inside install -d -o tandem /run/tandem-test
chroot --userspec=tandem:tandem "$root" env -i PATH="$PATH" \
  tandem-server --config /etc/tandem/deployment.textproto --port-file=/run/tandem-test/ports --log-level=warn & server=$!
for _ in $(seq 1200); do
  [ ! -e "$root/run/tandem-test/ports" ] || break
  kill -0 $server
  sleep 0.1
done
address=$(sed -n 's/^grpc=//p' "$root/run/tandem-test/ports")
echo "answer=$(inside tandem generate "--server=$address" "--prompt=def add(a, b):" --max-new-tokens=12 --temperature=0 | base64 -w0)"
grep -q /usr/lib/tandem/libtorch_cpu.so "/proc/$server/maps" && echo "LibTorch is that of the package"
kill $server && wait $server && echo "stopped with status 0"

inside dpkg -i --force-confdef --force-confold /given/newer.deb
cmp "$config" "$1/given/config" && echo "upgrade keeps the configuration"
inside tandem-server --version
inside dpkg -r tandem
cmp "$config" "$1/given/config" && echo "removal keeps the configuration"
test ! -e "$root/usr/bin/tandem-server" && test ! -e "$root/usr/lib/tandem" && echo "removal removes the programs"
inside dpkg -P tandem
test ! -e "$root/etc/tandem" && echo "purge removes the configuration"
"""
)


def test_the_debian_package_is_installed_upgraded_and_removed(packages, expected, tmp_path):
    """In an overlay of this machine's root, whose changes are in memory."""
    need("unshare", "dpkg")
    if os.geteuid() != 0:
        pytest.skip("an overlay with a package's users requires root")
    need("systemd-sysusers")  # of the package's users
    (tmp_path / "space").mkdir()
    tried = subprocess.run(
        ["unshare", "--mount", "bash", "-c", OVERLAY, "overlay", tmp_path],
        capture_output=True,
        text=True,
    )
    if tried.returncode != 0:
        pytest.skip(f"no overlay of the root: {tried.stderr.strip()}")
    given = tmp_path / "given"
    given.mkdir()
    archive = one(packages, "*.deb")
    shutil.copy(archive, given / "tandem.deb")
    newer(archive, given)
    shutil.copytree(ROOT / "models/code-small", given / "models/code-small")
    run("chmod", "-R", "a+rX", given)
    (given / "config").write_text(CONFIG.format(models="/given/models"), "utf-8")
    output = run(
        "unshare", "--mount", "bash", "-c", LIFE, "life", tmp_path, env={**os.environ, "PATH": PATH}
    )
    (answer,) = re.findall(r"^answer=(.*)$", output, re.MULTILINE)
    assert base64.b64decode(answer).decode() == expected
    for line in [
        "LibTorch is that of the package",
        "stopped with status 0",
        "upgrade keeps the configuration",
        "removal keeps the configuration",
        "removal removes the programs",
        "purge removes the configuration",
    ]:
        assert line in output.splitlines(), output
    assert re.search(r"^tandem:x:\d+:", output, re.MULTILINE)


@pytest.fixture(scope="module")
def site():
    """The test environment's site-packages, which have torch."""
    torch = importlib.util.find_spec("torch")
    if torch is None:
        pytest.skip("no torch in this environment")
    return Path(torch.origin).resolve().parents[1]


@pytest.fixture(scope="module")
def environment(packages, site, tmp_path_factory):
    """A virtual environment with the wheels, which finds torch in the test environment."""
    wheels = sorted(packages.glob("*.whl"))
    if len(wheels) != 2:
        pytest.skip("no wheel of tandem-client (scripts/setup --full)")
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", folder)
    (own,) = folder.glob("lib/python3*/site-packages")
    (own / "test_environment.pth").write_text(f"{site}\n")
    # With the dependencies of the packages. torch must be the installed one.
    pip = [folder / "bin/python", "-m", "pip", "--disable-pip-version-check", "-q"]
    run(*pip, "install", "--no-index", f"--find-links={packages}", "tandem-server[client]")
    return folder


def test_the_wheel_starts_the_server_with_the_installed_torch(environment, expected, tmp_path):
    (tmp_path / "config").write_text(CONFIG.format(models=ROOT / "models"), "utf-8")
    env = {"PATH": f"{environment}/bin:{PATH}", "HOME": str(tmp_path)}
    assert re.search(r"tandem-server 0\S+ .*torch 2", run("tandem-server", "--version", env=env))
    ports = tmp_path / "ports"
    command = ["tandem-server", "--config", tmp_path / "config", f"--port-file={ports}"]
    with serving(command, ports, env=env) as address:
        assert run("tandem", *ASK, f"--server={address}", env=env) == expected


def test_the_python_api_finds_the_server_of_its_environment(environment, expected, tmp_path):
    """Also if PATH does not have the environment's programs."""
    program = (
        "import sys\nfrom tandem import LLM\n"
        "with LLM(sys.argv[1]) as llm:\n"
        "    print(llm.generate('def add(a, b):', max_new_tokens=12, temperature=0).text)\n"
    )
    env = {"PATH": PATH, "HOME": str(tmp_path)}
    model = ROOT / "models/code-small"
    assert run(environment / "bin/python", "-c", program, model, env=env).strip() in expected


def test_the_wheel_finds_torch_next_to_it(environment, site, tmp_path):
    """Without LD_LIBRARY_PATH, if both are in the same site-packages."""
    (own,) = environment.glob("lib/python3*/site-packages")
    copy = tmp_path / "site-packages"
    shutil.copytree(own / "tandem_server", copy / "tandem_server")
    (copy / "torch").symlink_to(site / "torch")
    if (site / "nvidia").exists():
        (copy / "nvidia").symlink_to(site / "nvidia")
    assert "torch 2" in run(copy / "tandem_server/bin/tandem-server", "--version", env={})
    code = "import tandem_server as t; assert t.torch_problem() is None; print(t.environment())"
    shown = run(sys.executable, "-c", code, env={"PYTHONPATH": str(copy)})
    assert "LD_LIBRARY_PATH" not in shown


def test_another_version_of_torch_is_refused(environment, tmp_path):
    info = tmp_path / "torch-2.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.1.0\n")
    done = subprocess.run(
        [environment / "bin/tandem-server", "--version"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert re.search(r"torch 2\S+ is required; installed: 2\.1\.0; run: pip install", done.stderr)


def test_the_wheels_state_what_they_need(packages):
    with zipfile.ZipFile(one(packages, "tandem_server-*.whl")) as wheel:
        names = wheel.namelist()
        text = wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        modes = {entry.filename: entry.external_attr >> 16 for entry in wheel.infolist()}
    pins = (ROOT / "scripts/versions.env").read_text("utf-8")
    (torch,) = re.findall(r"^Requires-Dist: (torch==\S+)$", text, re.MULTILINE)
    assert f"{torch}\n" in pins
    assert "Classifier: Private :: Do Not Upload" in text and "No licence has been chosen" in text
    assert modes["tandem_server/bin/tandem-server"] & 0o111
    assert not [n for n in names if re.search(r"libtorch|libc10|libcud|libgomp", n)]
    assert [n for n in names if n.endswith(".dist-info/sboms/sbom.cdx.json")]
    assert re.search(r"manylinux_2_\d+_x86_64\.whl$", one(packages, "tandem_server-*.whl").name)


# In a new Debian: installation by apt from the archive, with its dependencies.
BARE = r"""
set -euo pipefail
mount --make-rprivate /
root=$1/debian
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
inside() { chroot "$root" env -i PATH="$PATH" DEBIAN_FRONTEND=noninteractive "$@"; }
cp /etc/resolv.conf "$root/etc/"
cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
inside apt-get update -q
inside apt-get install -yq --no-install-recommends systemd-standalone-sysusers /given/tandem.deb
cp "$1/debian/given/config" "$root/etc/tandem/deployment.textproto"
inside tandem-server --config /etc/tandem/deployment.textproto --check
inside install -d -o tandem /run/tandem-test
chroot --userspec=tandem:tandem "$root" env -i PATH="$PATH" \
  tandem-server --config /etc/tandem/deployment.textproto --port-file=/run/tandem-test/ports --log-level=warn & server=$!
while [ ! -e "$root/run/tandem-test/ports" ]; do kill -0 $server && sleep 0.1; done
address=$(sed -n 's/^grpc=//p' "$root/run/tandem-test/ports")
echo "answer=$(inside tandem generate "--server=$address" "--prompt=def add(a, b):" --max-new-tokens=12 --temperature=0 | base64 -w0)"
kill $server && wait $server && echo "stopped with status 0"
inside apt-get purge -yq tandem
test ! -e "$root/usr/bin/tandem-server"
"""


@night
def test_apt_installs_the_debian_package_in_a_new_debian(packages, expected, tmp_path):
    need("debootstrap", "unshare")
    if os.geteuid() != 0:
        pytest.skip("debootstrap requires root")
    root = tmp_path / "debian"
    run("debootstrap", "--variant=minbase", "bookworm", root, timeout=900)
    given = root / "given"
    shutil.copytree(ROOT / "models/code-small", given / "models/code-small")
    shutil.copy(one(packages, "*.deb"), given / "tandem.deb")
    (given / "config").write_text(CONFIG.format(models="/given/models"), "utf-8")
    authorities = Path("/usr/local/share/ca-certificates")
    if authorities.is_dir():
        shutil.copytree(authorities, root / authorities.relative_to("/"), dirs_exist_ok=True)
    output = run(
        *["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", BARE, "bare"],
        tmp_path,
        env={**os.environ, "PATH": PATH},
        timeout=900,
    )
    (answer,) = re.findall(r"^answer=(.*)$", output, re.MULTILINE)
    assert base64.b64decode(answer).decode() == expected
    assert "stopped with status 0" in output
    shutil.rmtree(root)


@night
def test_lintian_has_no_findings(packages):
    """The documented overrides are in deploy/debian/lintian-overrides."""
    need("lintian")
    run(
        "lintian",
        "--fail-on=error,warning",
        "--tag-display-limit=0",
        one(packages, "*.deb"),
        timeout=900,
    )
