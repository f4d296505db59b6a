"""How a command of Python ends if the system refuses something, or if it is stopped: one sentence, a true exit status, no traceback,
nothing half written."""

import errno
import importlib.metadata
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from program import PATIENCE, wait_until

from ghostshard import _native, binary, launcher
from ghostshard.errors import UserError, run

COMMAND = [sys.executable, "-m", "ghostshard.launcher"]


def prepare(folder, *words: str) -> list[str]:
    return [*COMMAND, "data", "prepare", "--format", "text", "--input", str(folder / "texts.txt"), "--tokenizer", "gpt2",
            "--max-length", "16", "--output", str(folder / "out.safetensors"), *words]  # fmt: skip


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    return tmp_path


def refused(error: Exception):
    def command(_arguments: list[str]) -> int:
        raise error

    return command


REFUSED = {
    "full": (OSError(28, "No space left on device", "run/out"), "error: run/out cannot be used: No space left on device\n"),
    "read_only": (OSError(30, "Read-only file system"), "error: reading or writing failed: Read-only file system\n"),
    "package": (ModuleNotFoundError("", name="tokenizers.models"),
                "error: this command needs the Python package tokenizers: python -m pip install tokenizers\n"),
}  # fmt: skip


@pytest.mark.parametrize("words", ["metrics {}", "generate --model {} --prompt a", "generate --model m --prompt a --tokenizer {}",
                                   "data prepare --format text --input {} --tokenizer gpt2 --max-length 8 --output out"])  # fmt: skip
@pytest.mark.parametrize("name", ["n" * 300, "loop", "texts.txt/below"])
def test_a_path_that_cannot_be_is_a_mistake(texts, monkeypatch, capsys, words, name):
    monkeypatch.chdir(texts)
    (texts / "loop").symlink_to("loop")
    (texts / "m").mkdir()
    (texts / "m" / "config.json").write_text("{}")
    assert launcher.main(words.format(name).split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and name in said


@pytest.mark.parametrize("words", ["prepare --max-length 8 --tokenizer gpt2", "split --public-units 1 --eval-units 0", "tokenizer --vocab-size 300"])
def test_a_link_that_leads_to_itself_is_not_replaced(texts, monkeypatch, capsys, words):
    monkeypatch.chdir(texts)
    (texts / "loop").symlink_to("loop")
    assert launcher.main(f"data {words} --format text --input texts.txt --output loop --force".split()) == 2
    assert (texts / "loop").is_symlink() and "loop cannot be used: Too many levels of symbolic links" in capsys.readouterr().err


@pytest.mark.parametrize("error, sentence", REFUSED.values(), ids=REFUSED)
def test_what_the_system_refuses_is_a_sentence(error, sentence, capsys):
    assert run(refused(error), []) == 1
    assert capsys.readouterr().err == sentence


def test_a_module_of_our_own_that_is_missing_is_a_fault_of_ours(capsys):
    assert run(refused(ModuleNotFoundError("", name="ghostshard.nothing")), []) == 1
    assert "a fault of ghostshard" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["data", "prepare"]], ids=["the_list", "a_command"])
def test_a_full_disk_under_standard_output(texts, words):
    command = [*COMMAND, *words] if words == ["--help"] else prepare(texts)
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: reading or writing failed: No space left on device\n")


def test_a_reader_that_is_gone_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "--help"], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_traceback_and_in_no_file(texts, closed):
    done = subprocess.run(["bash", "-c", f'exec "$0" "$@" {closed}', *prepare(texts)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "Traceback" not in done.stdout
    whole = (texts / "out.safetensors").read_bytes()
    assert subprocess.run([*prepare(texts), "--force"], capture_output=True).returncode == 0
    assert (texts / "out.safetensors").read_bytes() == whole


# Runs the command as its script does, and says when our first line has been reached: what comes before is Python's own start.
BEGIN = "import os, sys, ghostshard.command as begun; os.write(1, b'begun'); sys.argv[1:] = {words!r}; sys.exit(begun.main())"
ENDED = {signal.SIGINT: [(-signal.SIGINT, ""), (130, "interrupted\n")], signal.SIGTERM: [(-signal.SIGTERM, ""), (143, "")]}


@pytest.mark.parametrize("signum", ENDED)
def test_a_signal_at_any_moment_is_at_most_one_sentence(signum, texts):
    """While Python loads, while the command runs, and while Python ends; if it comes too late the command has done its work."""
    last = 1.5 * PATIENCE
    for part in range(12):
        words = prepare(texts, "--force")[3:]
        process = subprocess.Popen([sys.executable, "-c", BEGIN.format(words=words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert os.read(process.stdout.fileno(), 5) == b"begun"
        try:
            process.wait(last * (part / 12) ** 2)  # most moments early
        except subprocess.TimeoutExpired:
            process.send_signal(signum)
        _, err = process.communicate(timeout=60 * PATIENCE)
        assert (process.returncode, err.decode()) in [*ENDED[signum], (0, "")]
        assert sorted(file.name for file in texts.iterdir()) in (["texts.txt"], ["out.safetensors", "texts.txt"])


def test_nothing_is_loaded_before_ctrl_c_is_ours():
    script = "import sys; before = set(sys.modules); import ghostshard.command; print(sorted(set(sys.modules) - before))"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "['ghostshard', 'ghostshard.command']\n"


@pytest.mark.parametrize("name", ["ghostshard", "ghostshard-check-receipt"])
def test_a_script_loads_nothing_before_that(repository, name):
    command = [sys.executable, "-X", "importtime", repository / "bindings/python/scripts" / name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    begun = loaded.index("site")
    assert loaded[begun + 1 : begun + 3] == ["ghostshard", "ghostshard.command"] and name in done.stdout


def test_ctrl_c_that_is_ignored_stays_ignored():
    script = "import signal, ghostshard.command; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    words = ["bash", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, script]
    assert subprocess.check_output(words, text=True) == "True\n"


def test_the_command_itself_answers():
    done = subprocess.run([sys.executable, "-m", "ghostshard.command", "metrics"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ")


def test_sigterm_leaves_nothing_half_written(texts):
    script = f"""
import os, sys, time
import ghostshard.texts.packed as packed
from ghostshard.launcher import main
def forever(data):
    open({str(texts / "out.safetensors.partial-")!r} + str(os.getpid()), "w").write("half")
    print("writing", flush=True)
    while True: time.sleep(0.05)
packed._safetensors = forever
sys.exit(main({prepare(texts)[3:]!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60 * PATIENCE)
    assert (process.returncode, err) == (143, "")
    assert [file.name for file in texts.iterdir()] == ["texts.txt"]


def test_sigterm_ends_what_a_command_started(tmp_path):
    """ghostshard tune waits for its trials; ended by SIGTERM it must not leave one training."""
    pid = tmp_path / "pid"
    script = f"""
import subprocess, sys
from ghostshard.errors import run
sys.exit(run(lambda words: subprocess.run(["bash", "-c", "echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600"]).returncode, []))
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_until(pid.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60 * PATIENCE) == 143
    wait_until(lambda: not os.path.exists(f"/proc/{pid.read_text().strip()}"))


def test_sigterm_stays_as_the_caller_has_it():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("caller"))
    try:
        assert run(lambda _words: os.kill(os.getpid(), signal.SIGTERM), []) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["caller"]
    assert signal.getsignal(signal.SIGTERM) == before


TORCHES = {  # what the program was built with, what is there, what is said
    "none": ("2.11.0", None, "was built with torch 2.11.0, this environment has none: python -m pip install 'torch==2.11.*'"),
    "another": ("2.9.0", "2.11.0+cu130", "was built with torch 2.9.0, this environment has 2.11.0+cu130"),
    "same": ("2.11.0", "2.11.1", ""),
}  # fmt: skip


@pytest.mark.parametrize("built, found, sentence", TORCHES.values(), ids=TORCHES)
def test_an_installed_program_needs_the_torch_it_was_built_with(built, found, sentence, monkeypatch, tmp_path, capsys):
    def version(_name: str) -> str:
        if found is None:
            raise importlib.metadata.PackageNotFoundError
        return found

    (tmp_path / binary.PROGRAM).touch()
    monkeypatch.setattr(binary, "INSTALLED", tmp_path)
    monkeypatch.setattr(binary, "repository", lambda: tmp_path)
    monkeypatch.delenv("GHOSTSHARD_BINARY", raising=False)
    monkeypatch.setattr(_native, "build_facts", lambda: {"torch": built, "cuda": False})
    monkeypatch.setattr(importlib.metadata, "version", version)
    if sentence:
        assert launcher.main(["finetune", "--steps", "1"]) == 2
        assert sentence in capsys.readouterr().err
        with pytest.raises(UserError):
            binary.find_binary()
    else:
        assert binary.find_binary() == tmp_path / binary.PROGRAM


@pytest.mark.parametrize("words", [["--prompt", "über"], ["--prompt", b"\xff"]], ids=["utf8", "no_text"])
def test_a_prompt_is_utf8_whatever_the_locale(words, fake_binary, tmp_path):
    """The C locale has Python take each byte beyond ASCII for half of a surrogate pair."""
    fake_binary('echo "tokens: 1"')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([*COMMAND, "generate", "--model", str(tmp_path / "model"), "--tokenizer", "gpt2", *words], env=environment,
                          capture_output=True)  # fmt: skip
    if words[1] == "über":
        assert (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith("über".encode())
    else:
        assert (done.returncode, done.stderr) == (2, b"error: --prompt must be UTF-8 text, its byte 0 is not\n")


def test_the_c_locale_shows_names_of_files_as_they_are():
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([*COMMAND, "metrics", "Läufe"], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (2, "error: RUN must be the folder of a run (its --output), got Läufe\n".encode())


@pytest.mark.parametrize("number, code", [(errno.ENOSPC, 1), (errno.EROFS, 2)], ids=["full", "read_only"])
@pytest.mark.parametrize("command", ["prepare", "tokenizer"])
def test_a_full_disk_is_a_failure_and_a_read_only_one_a_mistake(command, number, code, texts, monkeypatch, capsys):
    def write(path, *_words, **_options):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", write)
    monkeypatch.setattr(Path, "write_text", write)
    words = prepare(texts)[3:] if command == "prepare" else ["data", "tokenizer", "--gpt2", "--output", str(texts / "out.safetensors")]
    assert launcher.main(words) == code
    assert capsys.readouterr().err == f"error: the output {texts / 'out.safetensors'} cannot be written: {os.strerror(number)}\n"


def test_a_folder_that_is_read_only_is_refused_before_anything_is_read(texts, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda *_: False)
    (texts / "texts.txt").unlink()
    assert launcher.main(prepare(texts)[3:]) == 2
    assert f"{texts} is read-only for this user" in capsys.readouterr().err
