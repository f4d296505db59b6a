"""--optimizer-groups FILE: parameters with an optimizer, a learning rate or a weight decay of their own."""

import json
import os
import shutil
from pathlib import Path

import pytest
from program import PLAIN, PRIVATE, arguments, everything_in, report, same_weights, weights, write_model
from resumable import as_if_ended, checkpoints, goes_on_to_the_bit_and_on_other_ranks, is_killed_and_goes_on_to_the_bit, ledger_lines, releases, resumed, run_all  # fmt: skip

from ghostshard import _native

# Matrices of 4,096 elements and more, so that there is something in 8 bits.
WIDE = {"n_embd": 64, "n_head": 4}
MATRICES = '["*.c_attn.weight", "*.c_proj.weight", "*.c_fc.weight"]'
MUON = f"""[[group]]
name = "matrices"
match = {MATRICES}
optimizer = "muon"
"""
MIXED = """[[group]]  # every optimizer that keeps states of its own kind
name = "attention"
match = "*.attn.c_attn.weight"
optimizer = "muon"
[[group]]
name = "inner"
match = ["*.c_fc.weight", "*.attn.*.weight"]
optimizer = "soap"
tile-side = 32
refresh-every = 3
learning-rate = 5e-4
[[group]]
name = "embeddings"
match = ["transformer.wte*"]
optimizer = "adamw8bit"
betas = [0.8, 0.99]
[[group]]
name = "norms"
match = ["*.ln_*"]
optimizer = "sgd"
momentum = 0.9
learning-rate-factor = 2
"""


@pytest.fixture
def wide(program):
    write_model(program.folder / "model", config=WIDE)
    return program


def groups_file(work: Path, text: str, name: str = "groups.toml") -> str:
    (work / name).write_text(text)
    return name


# What flags say for all parameters, and a file that says it for some of them, the flags saying it for the others.
TWINS = {
    "adamw": ({"--weight-decay": "0.1"}, {"--weight-decay": "0.1"},
              '[[group]]\nname = "a"\nmatch = "*.h.0.*"\n[[group]]\nname = "b"\nmatch = ["*.h.*", "*.w?e.*"]\noptimizer = "adamw"\n'),
    "all_said": ({"--optimizer": "sgd", "--momentum": "0.9", "--learning-rate": "0.01", "--weight-decay": "0.1"}, {"--learning-rate": "0.02"},
                 '[[group]]\nname = "a"\nmatch = "*"\noptimizer = "sgd"\nmomentum = 0.9\nweight-decay = 0.1\nlearning-rate = 0.01\n'),
    "muon": ({"--optimizer": "muon", "--weight-decay": "0.1"}, {"--weight-decay": "0.1"}, MUON + "learning-rate-factor = 1\n"),
    "shampoo": ({"--optimizer": "shampoo", "--tile-side": "32"}, {},
                MUON.replace("muon", "shampoo") + "tile-side = 32\n"),
    "adamw8bit": ({"--optimizer": "adamw8bit"}, {}, '[[group]]\nname = "a"\nmatch = "*"\noptimizer = "adamw8bit"\n'),
    "schedule": ({"--lr-schedule": "linear", "--warmup-steps": "1", "--learning-rate": "0.001"},
                 {"--lr-schedule": "linear", "--warmup-steps": "1", "--learning-rate": "0.002"},
                 '[[group]]\nname = "a"\nmatch = "*"\nlearning-rate-factor = 0.5\n'),
}  # fmt: skip


# On one rank all of them; on two those whose states lie there otherwise than weights do. The others are long tests.
@pytest.mark.parametrize(("name", "ranks"), [
    pytest.param(name, ranks, marks=[] if ranks == 1 or name in ("muon", "schedule") else pytest.mark.long) for name in TWINS for ranks in (1, 2)
])  # fmt: skip
def test_a_file_that_says_what_the_flags_say_gives_the_same_bits(wide, name, ranks):
    """Without privacy, so that a run repeats to the bit. Factors are powers of two: no rounding."""
    by_flags, beside, text = TWINS[name]
    done = run_all(wide, ranks, arguments({**PLAIN, **by_flags, "--timeout": "60"}, output="flags"))
    assert done.code == 0, done.err
    groups_file(wide.folder, text)
    done = run_all(wide, ranks, arguments({**PLAIN, **beside, "--timeout": "60"}, output="file", optimizer_groups="groups.toml"))
    assert done.code == 0, done.err
    assert same_weights(wide.folder / "flags", wide.folder / "file")


def test_a_group_moves_its_own_parameters_and_no_others(wide):
    groups_file(wide.folder, '[[group]]\nname = "slow"\nmatch = ["*.ln_*"]\nlearning-rate-factor = 1e-9\n')
    assert wide.run(arguments(PLAIN, steps="1", output="all")).code == 0
    assert wide.run(arguments(PLAIN, steps="1", output="some", optimizer_groups="groups.toml")).code == 0
    every, some = weights(wide.folder / "all"), weights(wide.folder / "some")
    for parameter, value in every.items():
        assert (value == some[parameter]).all() == ("ln_" not in parameter), parameter


def test_a_run_goes_on_to_the_bit_on_other_ranks_too(wide):
    groups_file(wide.folder, MIXED)
    goes_on_to_the_bit_and_on_other_ranks(wide, {**PLAIN, "--optimizer-groups": "groups.toml"})
    assert checkpoints(wide.folder / "run")[4]["optimizer"]["rule"] == "muon+soap+adamw8bit+sgd+adamw"


def test_a_killed_run_goes_on_to_the_bit(wide):
    """Muon's momentum, tiles, codes, velocities and float32 moments, by bfloat16 weights too."""
    groups_file(wide.folder, MIXED)
    flags = {**PLAIN, "--optimizer-groups": "groups.toml", "--compute-dtype": "bfloat16", "--master-dtype": "bfloat16"}
    is_killed_and_goes_on_to_the_bit(wide, flags)


def test_the_report_has_the_groups_and_the_sentence_of_all_optimizers(wide):
    groups_file(wide.folder, MIXED)
    done = run_all(wide, 2, arguments({**PRIVATE, "--timeout": "60"}, optimizer_groups="groups.toml"))
    assert done.code == 0, done.err
    said = report(wide.folder / "run")
    assert said["mechanism"]["optimizer"] == (
        "muon+soap+adamw8bit+sgd+adamw, computed from released gradients and public numbers alone (post-processing)"
    )
    groups = json.loads(said["further_facts"]["hyper_parameters"]["optimizer-groups"])
    assert [group["name"] for group in groups] == ["attention", "inner", "embeddings", "norms"]
    assert groups[1] == {"name": "inner", "match": ["*.c_fc.weight", "*.attn.*.weight"], "optimizer": "soap", "tile-side": 32,
                         "refresh-every": 3, "learning-rate": 5e-4}  # fmt: skip


def plan_table(program, **flags) -> str:
    done = program.run(arguments(PLAIN, explain_plan="", memory_budget="1.5x", **flags))
    assert done.code == 0, done.err
    return next(line for line in done.err.splitlines() if line.startswith("Memory on a rank:"))


def test_the_plan_counts_what_the_groups_keep(wide):
    groups_file(wide.folder, MUON)
    by_file = plan_table(wide, output="a", optimizer_groups="groups.toml")
    assert by_file == plan_table(wide, output="b", optimizer="muon")
    assert by_file != plan_table(wide, output="c")


def test_another_file_does_not_go_on_and_another_spelling_does(wide):
    groups_file(wide.folder, MUON)
    flags = {**PRIVATE, "--optimizer-groups": "groups.toml", "--checkpoint-every": "2"}
    assert wide.run(arguments(flags)).code == 0
    shutil.rmtree(wide.folder / "run" / "model")
    (wide.folder / "run" / "privacy_report.json").unlink()
    others = {"other.toml": MUON + "momentum = 0.5\n", "match.toml": MUON.replace("c_fc", "c_f[c]")}
    for name, text in others.items():
        groups_file(wide.folder, text, name)
    before = everything_in(wide.folder)
    for changes in ({"optimizer_groups": name} for name in (*others, None)):
        done = wide.run(resumed(flags, **changes))
        assert done.code == 2 and "--optimizer-groups must be what the run began with" in done.err, done
        assert done.err.count("\n") == 1
        assert everything_in(wide.folder) == before
    groups_file(wide.folder, "# the same\n" + MUON.replace(' = "m', '="m'), "same.toml")
    assert wide.run(resumed(flags, optimizer_groups="same.toml", epsilon_limit="1e6")).code == 0


def test_ranks_with_other_files_are_refused(wide):
    groups_file(wide.folder, MUON)
    groups_file(wide.folder, MUON + "weight-decay = 0.5\n", "other.toml")
    before = everything_in(wide.folder)
    words = [arguments(PRIVATE, timeout="60", optimizer_groups=name) for name in ("groups.toml", "other.toml")]
    for rank in wide.run_ranks(*words):
        assert rank.code == 2 and "--optimizer-groups on rank 1" in rank.err, rank
    assert everything_in(wide.folder) == before


def test_noise_bands_serve_the_momentum_of_each_group_and_a_killed_run_goes_on_with_them(wide, account):
    """The ratios are those of the momenta, weighed by the elements that are trained with each."""
    groups_file(wide.folder, f'[[group]]\nname = "a"\nmatch = {MATRICES}\noptimizer = "sgd"\nmomentum = 0.9\n')
    flags = {**PRIVATE, "--noise-bands": "3", "--steps": "8", "--checkpoint-every": "5", "--keep-checkpoints": "9", "--optimizer": "sgd",
             "--learning-rate": "0.01", "--optimizer-groups": "groups.toml", "--timeout": "60"}  # fmt: skip
    assert run_all(wide, 2, arguments(flags)).code == 0
    run, elements = wide.folder / "run", {0.9: 0, 0.0: 0}
    for name, value in weights(run).items():
        in_the_group = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        elements[0.9 if in_the_group else 0.0] += value.size
    assert min(elements.values()) > 1000
    ratios = ledger_lines(run)[0]["noise_bands"]
    expected = _native.load("engine").band_ratios(3, [1.0] * 8, [(momentum, float(count)) for momentum, count in sorted(elements.items())])
    assert ratios == pytest.approx([1.0, *expected], abs=1e-5)  # BFGS ends where the slope is 1e-8
    as_if_ended(wide.folder, step=5, charged=8)
    assert run_all(wide, 2, resumed(flags, epsilon_limit="1e6")).code == 0  # the plan has three rounds
    assert releases(run) == [(step, 0) for step in range(8)] + [(step, 1) for step in (5, 6, 7)]
    assert report(run)["population_and_steps"]["groups"]["rounds"] == [4, 4, 3]  # steps 0 3 6 6, 1 4 7 7 and 2 5 5
    verified = account("verify", "--ledger", run / "ledger.jsonl", "--report", run / "privacy_report.json")
    assert verified.returncode == 0 and "Nothing differs" in verified.stdout, verified.stdout + verified.stderr


def one(lines: str, match: str = '"*"') -> str:
    return f'[[group]]\nname = "g"\nmatch = {match}\n{lines}\n'


WRONG = {  # the file, flags, what the sentence says
    "no_toml": ("group: 1\n", {}, "--optimizer-groups must name a TOML file, groups.toml:1: "),
    "key_twice": (one("momentum = 0.1\nmomentum = 0.2"), {}, "groups.toml:5: "),
    "no_utf8": ("\udcff", {}, "--optimizer-groups must name a TOML file, groups.toml:1: "),
    "empty": ("", {}, "groups.toml: a file of groups must hold one [[group]] table or more"),
    "single_table": ('[group]\nname = "g"\n', {}, "must hold one [[group]] table or more"),
    "list_of_texts": ('group = ["a"]\n', {}, "must hold one [[group]] table or more"),
    "other_key": ("[[groups]]\n", {}, 'groups.toml:1: a file of groups holds [[group]] tables alone, got the key "groups"'),
    "no_name": ('[[group]]\nmatch = "*"\n', {}, "groups.toml:1: group 'number 1': name must be given"),
    "empty_name": ('[[group]]\nname = ""\nmatch = "*"\n', {}, "groups.toml:2: group 'number 1': name must be a text, got the text \"\""),
    "no_match": ('[[group]]\nname = "g"\n', {}, "groups.toml:1: group 'g': match must be given"),
    "name_twice": (one("") + one(""), {}, "groups.toml:6: group 'g': name is taken by group number 1"),
    "unknown_key": (one("weight_decay = 1"), {}, "groups.toml:4: group 'g': weight_decay is no key of a group; did you mean weight-decay?"),
    "match_number": (one("", "[1]"), {}, "match must be a glob over names of parameters, or a list of them, got the whole number 1"),
    "match_nothing_said": (one("", "[]"), {}, "got an empty list"),
    "match_none": (one("", '["*", "wte*"]'), {}, "groups.toml:3: group 'g': match must match parameters that are trained, 'wte*' matches none"),
    "match_frozen": (one("", '"*.wpe*"'), {"freeze": "*.wpe*"}, "'*.wpe*' matches none"),
    "match_taken": (one("") + one("", '"*.ln_*"').replace('"g"', '"h"'), {}, "group 'h': match must leave the group a parameter"),
    "optimizer_unknown": (one('optimizer = "adamw8"'), {}, 'got "adamw8"; did you mean adamw?'),
    "optimizer_number": (one("optimizer = 8"), {}, "optimizer must be a text, got the whole number 8"),
    "muon_of_vectors": (one('optimizer = "muon"'), {}, "groups.toml:4: group 'g': optimizer muon is for matrices, the group has the vector 'transformer.h.0.ln_1.weight'"),
    "muon_on_a_model_axis": (one('optimizer = "muon"', '"*.c_fc.weight"'), {"mesh": "1x1x2"}, "optimizer muon needs whole matrices"),
    "rate_text": (one('learning-rate = "fast"'), {}, 'learning-rate must be a number, got the text "fast"'),
    "rate_zero": (one("learning-rate = 0"), {}, "learning-rate must be finite and > 0, got the whole number 0"),
    "rate_nan": (one("learning-rate-factor = nan"), {}, "learning-rate-factor must be finite and > 0, got the number"),
    "both_rates": (one("learning-rate = 1\nlearning-rate-factor = 1"), {}, "learning-rate and learning-rate-factor exclude each other"),
    "decay_negative": (one("weight-decay = -0.5"), {}, "groups.toml:4: group 'g': weight-decay must be finite and >= 0, got -0.5"),
    "decay_table": (one("weight-decay = {a = 1}"), {}, "weight-decay must be a number, got a table"),
    "momentum_one": (one('optimizer = "sgd"\nmomentum = 1'), {}, "groups.toml:5: group 'g': momentum must be in [0, 1), got 1"),
    "momentum_of_adamw": (one("momentum = 0.5"), {}, "momentum is for optimizer sgd or muon"),
    "betas_three": (one("betas = [0.9, 0.9, 0.9]"), {}, "betas must be two numbers in a list, got a list"),
    "beta_one": (one("betas = [0.9, 1]"), {}, "betas must be two numbers in [0, 1), got 1"),
    "betas_of_sgd": (one('optimizer = "sgd"\nbetas = [0.9, 0.9]'), {}, "betas is for optimizer adamw"),
    "epsilon_zero": (one("epsilon = 0"), {}, "epsilon must be finite and > 0, got 0"),
    "heads_text": (one('optimizer = "muon"\nmuon-heads = "yes"', '"*.c_fc.weight"'), {}, 'muon-heads must be true or false, got the text "yes"'),
    "noise_of_muon_unknown": (one('optimizer = "muon"\nmuon-noise = "some"', '"*.c_fc.weight"'), {}, "groups.toml:5: group 'g': muon-noise must be keep, drop or correct, got some"),
    "side_fraction": (one('optimizer = "soap"\ntile-side = 1.5', '"*.c_fc.weight"'), {}, "tile-side must be a whole number, got the number 1.5"),
    "side_of_adamw": (one("tile-side = 8"), {}, "tile-side is for optimizer shampoo or soap"),
    "floor_without_noise": (one("second-moment-floor = 0.1"), {"non_private": "", "noise_multiplier": None}, "which --non-private has none of"),
    "floor_adaptive": (one("second-moment-floor = 0.1"), {"clipping": "adaptive"}, "cannot be combined with --clipping adaptive"),
    "date": (one("weight-decay = 2020-01-01"), {}, "weight-decay must be a number, got a date or a time"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_ends_in_one_sentence_and_nothing_is_written(program, name):
    text, flags, message = WRONG[name]
    (program.folder / "groups.toml").write_bytes(text.encode(errors="surrogateescape"))
    before = everything_in(program.folder)
    done = program.run(arguments(PRIVATE, optimizer_groups="groups.toml", **flags))
    assert done.code == 2 and message in done.err, done
    assert done.err.startswith("error: ") and done.err.count("\n") == 1 and done.out == ""
    assert everything_in(program.folder) == before


@pytest.mark.parametrize("what, message", [("none", "groups.toml cannot be read: No such file"), ("pipe", "must be a regular file, it is a pipe")])
def test_a_file_that_is_none_is_refused_at_once(program, what, message):
    if what == "pipe":
        os.mkfifo(program.folder / "groups.toml")
    done = program.run(arguments(PRIVATE, optimizer_groups="groups.toml"), seconds=20)
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1, done
