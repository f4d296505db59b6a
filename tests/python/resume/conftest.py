import shutil

import pytest
from program import Program, arguments, write_inputs, write_key
from resumable import KEYED, as_if_ended


@pytest.fixture
def keyed(program):
    write_key(program.folder)
    return program


@pytest.fixture(scope="session")
def undisturbed(binary, tmp_path_factory):
    """A whole run with its key and checkpoints after 5, 10, 15 and 20 steps, and the folder it lies in."""
    folder = tmp_path_factory.mktemp("undisturbed") / "work"
    write_inputs(folder)
    write_key(folder)
    program = Program(binary, folder)
    try:
        assert program.run(arguments(KEYED)).code == 0
    finally:
        program.kill_all()
    return folder


@pytest.fixture
def ended(undisturbed, binary, tmp_path):
    """ended(step, charged): a program in a copy of the undisturbed run's folder, cut back to there."""
    started = []

    def make(step: int, charged: int | None = None) -> Program:
        work = tmp_path / f"copy{len(started)}"
        shutil.copytree(undisturbed, work)
        as_if_ended(work, step, charged)
        started.append(Program(binary, work))
        return started[-1]

    yield make
    for program in started:
        program.kill_all()
