"""The command `ghostshard`: what it starts, its exit statuses, signals to several ranks; with stand-ins for the program, and
a whole run on two ranks."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from program import PATIENCE, arguments, wait_until

from ghostshard import launcher, local_ranks
from ghostshard.local_ranks import status_of

COMMAND = [sys.executable, "-m", "ghostshard.launcher"]
# Each rank notes its place; what it does next is the test's.
NOTE = 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT $*" >> "$NOTES"\n'


@pytest.fixture
def start(fake_binary, tmp_path):
    notes = tmp_path / "notes"

    def begin(script: str, *words: str, **environment: str) -> subprocess.Popen:
        fake_binary(NOTE + script)
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        return subprocess.Popen(
            [*COMMAND, *words], env={**clean, "NOTES": str(notes), **environment}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip

    def run(script: str, *words: str, **environment: str) -> tuple[int, str, str]:
        process = begin(script, *words, **environment)
        out, err = process.communicate(timeout=60 * PATIENCE)
        return process.returncode, out, err

    run.begin = begin
    run.notes = lambda: sorted(notes.read_text().splitlines()) if notes.exists() else []
    return run


def test_ranks_have_their_places_and_the_same_words(start):
    code, _, err = start("", "finetune", "--model", "m", "-n", "3", "--steps=2")
    assert (code, err) == (0, "")
    notes = [note.split(" ", 4) for note in start.notes()]
    assert [note[:3] for note in notes] == [[str(rank), "3", str(rank)] for rank in range(3)]
    assert len({note[3] for note in notes}) == 1 and {note[4] for note in notes} == {"--model m --steps=2"}


@pytest.mark.parametrize("words", [[], ["-n", "1"], ["-n", "2", "--help"]], ids=" ".join)
def test_one_rank_is_the_program_itself(start, words):
    code, out, _ = start('echo "pid $$"; exit 3', "finetune", *words)
    assert code == 3 and out.startswith("pid ")
    assert start.notes()[0].startswith("   :")  # no rank


def test_under_another_launcher_it_is_one_of_the_ranks(start):
    code, *_ = start("exit 3", "finetune", "--steps=2", RANK="1", WORLD_SIZE="2", LOCAL_RANK="1")
    assert code == 3 and start.notes() == ["1 2 1 : --steps=2"]
    code, _, err = start("", "finetune", "-n", "2", RANK="1", WORLD_SIZE="2")
    assert code == 2 and "leave -n out" in err


ENDS = {  # what ranks 0 and 1 end with, and the launcher
    "done": (0, 0, 0), "stopped": (3, 3, 3), "stopped_late": (0, 3, 3), "mistake": (2, 2, 2), "mistake_of_one": (1, 2, 2),
    "failure": (1, 1, 1), "failure_of_one": (0, 1, 1), "unknown": (127, 0, 1), "stopped_and_failed": (3, 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_exit_status(name):
    *codes, expected = ENDS[name]
    assert status_of(codes, set()) == expected


def test_signals_count_only_if_they_were_sent():
    assert status_of([-signal.SIGTERM, 130], {signal.SIGINT}) == 130
    assert status_of([-signal.SIGTERM, 3], {signal.SIGTERM}) == 143
    assert status_of([-signal.SIGTERM, 0], set()) == 1


@pytest.mark.parametrize("size", ["two", "1e9", "", " "])
def test_a_world_size_that_is_none_is_the_programs_to_refuse(start, size):
    assert start("exit 2", "finetune", "--steps=2", WORLD_SIZE=size)[::2] == (2, "")


@pytest.mark.parametrize("code", [1, 2, 3])
def test_exit_status_of_a_program_on_two_ranks(start, code):
    assert start(f"exit {code}", "finetune", "-n", "2")[0] == code


def test_ranks_may_stand_right_behind_their_flag(start):
    assert start("exit 3", "finetune", "-n2", "--steps=2")[0] == 3
    assert sorted(note.split()[0] for note in start.notes()) == ["0", "1"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_every_rank_once(start, signum):
    script = f"""trap 'echo "signal $RANK" >> "$NOTES"; sleep 0.3; exit 3' {signum.name[3:]}
echo "ready $RANK" >> "$NOTES"
while :; do sleep 0.05; done"""
    process = start.begin(script, "finetune", "-n", "2")
    wait_until(lambda: sum(note.startswith("ready") for note in start.notes()) == 2)
    process.send_signal(signum)
    assert process.wait(60) == 3
    assert [note for note in start.notes() if note.startswith("signal")] == ["signal 0", "signal 1"]
    assert process.stderr.read() == ""


def test_ctrl_c_reaches_every_rank_once(start):
    """A terminal sends it to the whole process group: ranks are in groups of their own, and hear of it from the launcher."""
    script = """trap 'echo "signal $RANK" >> "$NOTES"' INT
read -r _ _ _ _ group _ < /proc/$$/stat
[ $group = $$ ] && echo "ready $RANK" >> "$NOTES"
for i in {1..30}; do sleep 0.05; done; exit 3"""
    process = start.begin(script, "finetune", "-n", "2")
    wait_until(lambda: sum(note.startswith("ready") for note in start.notes()) == 2)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60 * PATIENCE) == 3
    assert [note for note in start.notes() if note.startswith("signal")] == ["signal 0", "signal 1"]


def test_what_rank_0_says_is_said_once_and_without_a_traceback(start):
    script = 'if [ $RANK = 0 ]; then echo "rank 0: ending because rank 1: bad" >&2; exit 1; fi; echo "rank 1: error: bad" >&2; exit 2'
    code, _, err = start(script, "finetune", "-n", "2")
    assert code == 2 and err == "rank 0: ending because rank 1: bad\n"


def test_what_rank_0_cannot_say_is_said(start):
    script = 'if [ $RANK = 0 ]; then kill -9 $$; fi; echo "rank 1: ending because rank 0 is gone" >&2; exit 1'
    code, _, err = start(script, "finetune", "-n", "2")
    assert code == 1
    assert "rank 1: ending because rank 0 is gone" in err and "error: rank 0 was ended by SIGKILL" in err


def test_a_rank_that_hears_nothing_is_ended(start, monkeypatch):
    """In this process, so that the times can be short."""
    monkeypatch.setattr(local_ranks, "GRACE", 0.3)
    monkeypatch.setattr(local_ranks, "LAST", 0.3)
    begin = time.monotonic()
    script = 'if [ $RANK = 1 ]; then exit 1; fi; trap "" TERM; while :; do sleep 0.05; done'
    assert local_ranks.run_ranks(["bash", "-c", script], 2) == 1
    assert time.monotonic() - begin < 20 * PATIENCE


def test_ranks_end_with_a_launcher_that_is_killed(start):
    process = start.begin("""trap 'echo "ended $RANK" >> "$NOTES"; exit 3' TERM
echo "ready $RANK" >> "$NOTES"
while :; do sleep 0.05; done""", "finetune", "-n", "2")
    wait_until(lambda: sum(note.startswith("ready") for note in start.notes()) == 2)
    process.kill()
    wait_until(lambda: sum(note.startswith("ended") for note in start.notes()) == 2)


def test_no_thread_runs_while_ranks_are_started(monkeypatch):
    """What a rank does before its program may wait for a lock that a thread of this process had when it was forked."""
    threads, start = [], subprocess.Popen

    def counted(*words, **options):
        threads.append(threading.active_count())
        return start(*words, **options)

    monkeypatch.setattr(local_ranks.subprocess, "Popen", counted)
    assert local_ranks.run_ranks(["bash", "-c", "sleep 0.5"], 3) == 0
    assert len(threads) == 3 and len(set(threads)) == 1


@pytest.mark.parametrize("gone", [False, True], ids=["parent lives", "parent died first"])
def test_a_rank_whose_launcher_died_before_it_could_listen_ends(gone):
    parent = os.getpid() + 10**6 if gone else os.getpid()
    done = subprocess.run(["true"], preexec_fn=functools.partial(local_ranks.prepare_rank, parent))
    assert done.returncode == (1 if gone else 0)


MISTAKES = {
    "misspelt": (["finetun"], "there is no command finetun; did you mean finetune?"),
    "unknown": (["xyz"], "there is no command xyz (ghostshard --help lists them)"),
    "ranks": (["finetune", "-n", "0"], "-n must be a whole number of ranks from 1 to 4096, got '0'"),
    "ranks_octal": (["finetune", "-n", "02"], "-n must be a whole number of ranks from 1 to 4096, got '02'"),
    "ranks_twice": (["finetune", "-n", "2", "--ranks=3"], "the number of ranks is given twice: give --ranks once"),
    "ranks_missing": (["finetune", "-n"], "-n must be a whole number of ranks from 1 to 4096, got ''"),
}


@pytest.mark.parametrize("words, sentence", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_sentence(words, sentence, capsys):
    assert launcher.main(words) == 2
    assert sentence in capsys.readouterr().err


def test_commands_are_there(capsys):
    assert launcher.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"ghostshard {command} " in shown or f"ghostshard {command}\n" in shown for command in launcher.COMMANDS)
    assert launcher.main(["data", "prepare"]) == 2
    assert launcher.main(["generate"]) == 2
    done = subprocess.run([*COMMAND, "account", "epsilon", "--bad"], capture_output=True, text=True)
    assert done.returncode == 2 and "ghostshard-account" in done.stderr


def test_a_whole_run_on_two_ranks_and_a_refusal(program):
    words = [*arguments({"--model": "model", "--data": "data.safetensors", "--output": "run", "--noise-multiplier": "1",
                         "--expected-batch": "4", "--steps": "2"})]  # fmt: skip
    environment = os.environ | {"GHOSTSHARD_BINARY": str(program.binary)}

    def run() -> subprocess.CompletedProcess:
        return subprocess.run([*COMMAND, "finetune", "-n", "2", *words], cwd=program.folder, env=environment,
                              capture_output=True, text=True, timeout=60 * PATIENCE)  # fmt: skip

    assert run().returncode == 0
    again = run()
    assert again.returncode == 2 and "Traceback" not in again.stderr
    assert sum("run" in line for line in again.stderr.splitlines()) == 1  # the folder is there: said once
