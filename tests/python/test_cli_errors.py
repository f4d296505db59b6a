"""A user's mistake: exit code 2, one sentence that names rule and value, and not a byte written or changed."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
from program import CONFIG, POSITIONS, PRIVATE, UNITS, VOCABULARY, Finished, Program, arguments, everything_in, texts, write_data, write_inputs, write_model  # fmt: skip

NAN_FLAGS = ("target-epsilon", "noise-multiplier", "delta", "clip-norm", "learning-rate", "weight-decay", "momentum",
             "min-learning-rate", "second-moment-floor")


def without(name: str):
    return lambda tensors: tensors.pop(name)


def reshaped(name: str, shape: tuple[int, ...]):
    return lambda tensors: tensors.update({name: numpy.zeros(shape, numpy.float32)})


def config(**values):
    return lambda work: (work / "model" / "config.json").write_text(json.dumps({**CONFIG, **values}))


def weights_file(spoil):
    """spoil(bytes) -> bytes of model.safetensors."""

    def change(work: Path) -> None:
        path = work / "model" / "model.safetensors"
        path.write_bytes(spoil(path.read_bytes()))

    return change


def data_file(**columns):
    """data.safetensors of four texts of three tokens, with other columns."""
    return lambda work: write_data(work / "data.safetensors", [[1, 2, 3]] * 4, **columns)


def units(*lengths):
    return lambda work: write_data(work / "data.safetensors", texts(lengths))


def offsets(*values):
    return data_file(offsets=numpy.array(values, numpy.int64))


def tokens_with(position: int, token: int):
    values = numpy.array([1, 2, 3] * 4, numpy.int32)
    values[position] = token
    return data_file(tokens=values)


def key_file(size: int, mode: int):
    def change(work: Path) -> None:
        (work / "key").write_bytes(bytes(size))
        (work / "key").chmod(mode)

    return change


def index(content: str):
    def change(work: Path) -> None:
        (work / "model" / "model.safetensors").unlink()
        (work / "model" / "model.safetensors.index.json").write_text(content)

    return change


def link_to_nowhere(work):
    (work / "run").symlink_to("gone")


def other_run(work: Path) -> None:
    (work / "run" / "model").mkdir(parents=True)
    (work / "run" / "ledger.jsonl").write_text("precious\n")


def nothing(work: Path) -> None:
    pass


# What is changed before; flags other than those of a good run; what the sentence says.
MODEL = {
    "no_folder": (nothing, {"model": "nothing"}, "--model must be a folder, nothing is none"),
    "a_file_as_folder": (nothing, {"model": "data.safetensors"}, "--model must be a folder"),
    "no_config": (lambda work: (work / "model" / "config.json").unlink(), {}, "config.json cannot be read"),
    "config_is_no_json": (lambda work: (work / "model" / "config.json").write_text("{"), {}, "config.json is not valid JSON"),
    "config_is_a_list": (lambda work: (work / "model" / "config.json").write_text("[]"), {}, "must be a JSON object"),
    "another_architecture": (config(model_type="llama"), {}, "'model_type' must be \"gpt2\", got \"llama\""),
    "heads_do_not_divide": (config(n_head=3), {}, "'n_embd' must be a multiple of n_head (3), got 16"),
    "negative_layers": (config(n_layer=-1), {}, "'n_layer' must be a whole number >= 1, got -1"),
    "endless_layers": (config(n_layer=10**9), {}, "'n_layer' must be at most 100000, got 1000000000"),
    "endless_vocabulary": (config(vocab_size=2**40), {}, "'vocab_size' must be at most 2147483647, got 1099511627776"),
    "endless_width": (config(n_embd=2**31 - 2), {}, "a model must have at most 1e15 parameters"),
    "fractional_width": (config(n_embd=16.5), {}, "'n_embd' must be a whole number >= 1, got 16.5"),
    "unknown_activation": (config(activation_function="swish"), {}, "'activation_function' must be one of"),
    "other_attention": (config(scale_attn_by_inverse_layer_idx=True), {}, "'scale_attn_by_inverse_layer_idx' must be false"),
    "no_weights": (lambda work: (work / "model" / "model.safetensors").unlink(), {}, "must contain model.safetensors"),
    "weights_empty": (weights_file(lambda _: b""), {}, "must hold at least 8 bytes, got 0"),
    "weights_header_cut": (weights_file(lambda whole: whole[:40]), {}, "the header must be at most 100 MB and within the file"),
    "weights_data_cut": (weights_file(lambda whole: whole[:-7]), {}, "must rise and lie within the"),
    "weights_longer": (weights_file(lambda whole: whole + b"more"), {}, "the tensors must fill the"),
    "weights_garbage": (weights_file(lambda whole: b"\xff" * len(whole)), {}, "the header must be at most 100 MB"),
    "weights_header_no_json": (weights_file(lambda whole: whole[:8] + b"{]" + whole[10:]), {}, "the header must be JSON"),
    "tensor_missing": (
        lambda work: write_model(work / "model", change=without("transformer.h.1.mlp.c_fc.bias")), {},
        "tensor 'transformer.h.1.mlp.c_fc.bias' is missing",
    ),
    "tensor_of_another_shape": (
        lambda work: write_model(work / "model", change=reshaped("transformer.wpe.weight", (POSITIONS, 8))), {},
        "tensor 'transformer.wpe.weight' must have shape [12, 16] by config.json, has [12, 8]",
    ),
    "tensor_transposed": (
        lambda work: write_model(work / "model", change=reshaped("transformer.h.0.attn.c_attn.weight", (48, 16))), {},
        "must have shape [16, 48] by config.json, has [48, 16]",
    ),
    "tensor_too_many": (
        lambda work: write_model(work / "model", change=reshaped("transformer.h.2.ln_1.bias", (16,))), {},
        "tensor 'transformer.h.2.ln_1.bias' does not belong to this model",
    ),
    "tensor_by_both_its_names": (
        lambda work: write_model(work / "model", change=lambda t: t.update({"wpe.weight": t["transformer.wpe.weight"] + 1})),
        {}, "wpe.weight",
    ),
    "tensor_without_a_number": (
        lambda work: write_model(work / "model", change=lambda t: t["transformer.ln_f.bias"].__setitem__(3, numpy.nan)), {},
        "tensor 'transformer.ln_f.bias' must be finite in float32, has NaN, infinity or a larger number",
    ),
    "tensor_beyond_float32": (
        lambda work: write_model(work / "model", change=lambda t: t.update({"transformer.ln_f.bias": numpy.full(16, 1e300)})), {},
        "tensor 'transformer.ln_f.bias' must be finite in float32",
    ),
    "tensor_of_integers": (
        lambda work: write_model(work / "model", change=lambda t: t.update(
            {"transformer.ln_f.bias": numpy.zeros(16, numpy.int32)})), {},
        "tensor 'transformer.ln_f.bias' must be floating point, is Int",
    ),
    "index_without_map": (index("{}"), {}, "must have an object 'weight_map'"),
    "index_of_a_missing_file": (index('{"weight_map": {"a": "gone.safetensors"}}'), {}, "gone.safetensors"),
    "index_of_numbers": (index('{"weight_map": {"a": 3}}'), {}, "'weight_map'"),
    "no_model_at_all": (nothing, {"model": None}, "give one of --model DIR"),
    "model_and_fresh_weights": (nothing, {"model_config": "model/config.json"}, "give one of --model DIR"),
    "fresh_weights_of_nothing": (nothing, {"model": None, "model_config": "nothing.json"}, "nothing.json cannot be read"),
}  # fmt: skip

DATA = {
    "no_file": (nothing, {"data": "nothing.safetensors"}, "nothing.safetensors"),
    "a_folder": (nothing, {"data": "model"}, "model"),
    "no_flag": (nothing, {"data": None}, "--data FILE is needed"),
    "garbage": (lambda work: (work / "data.safetensors").write_bytes(b"x" * 300), {}, "data.safetensors is not a file of tokens"),
    "unprepared": (lambda work: (work / "notes.jsonl").write_text('{"text": "private"}\n' * 9), {"data": "notes.jsonl"},
                   "prepare it first, with `ghostshard data prepare --format jsonl --input notes.jsonl --tokenizer "
                   "MODEL_FOLDER --max-length N --output notes.safetensors`"),
    "unprepared_and_public": (lambda work: (work / "a").write_text("x" * 99), {"eval_data": "a"}, "--format FORMAT --input a"),
    "no_public_file": (nothing, {"eval_data": "nothing.safetensors"}, "nothing.safetensors"),
    "column_missing": (data_file(loss_mask=None), {}, "tensor 'loss_mask' is missing"),
    "no_text": (lambda work: write_data(work / "data.safetensors", []), {}, "there must be at least one text, found none"),
    "no_offsets": (data_file(offsets=numpy.zeros(0, numpy.int64)), {}, "there must be at least one text, found none"),
    "tokens_int64": (data_file(tokens=numpy.ones(12, numpy.int64)), {}, "tensor 'tokens' must be Int with one extent, is Long"),
    "tokens_float": (data_file(tokens=numpy.ones(12, numpy.float32)), {}, "tensor 'tokens' must be Int"),
    "offsets_int32": (data_file(offsets=numpy.arange(0, 13, 3, dtype=numpy.int32)), {}, "tensor 'offsets' must be Long"),
    "mask_bool": (data_file(loss_mask=numpy.ones(12, bool)), {}, "tensor 'loss_mask' must be Byte"),
    "tokens_in_rows": (data_file(tokens=numpy.ones((4, 3), numpy.int32)), {}, "with one extent, is Int with 2"),
    "mask_shorter": (data_file(loss_mask=numpy.ones(11, numpy.uint8)), {}, "one value per token (12), has 11"),
    "offsets_begin_late": (offsets(1, 3, 6, 9, 12), {}, "must run from 0 to the number of tokens (12), run from 1 to 12"),
    "offsets_end_early": (offsets(0, 3, 6, 9), {}, "run from 0 to 9"),
    "offsets_go_back": (offsets(0, 6, 3, 9, 12), {}, "offsets must never decrease, do so at text 1"),
    "offsets_leave_the_file": (offsets(0, 2**62, 12), {}, "data.safetensors"),
    "token_too_large": (tokens_with(7, VOCABULARY), {}, f"must lie in [0, {VOCABULARY}) (the model's vocab_size), token 7 does not"),
    "token_negative": (tokens_with(11, -1), {}, "token 11 does not"),
    "public_token_too_large": (
        lambda work: write_data(work / "public.safetensors", [[1, 99]], "public"), {"eval_data": "public.safetensors"}, "token 1 does not",
    ),
    "nothing_public_to_predict": (
        lambda work: write_data(work / "public.safetensors", [[1, 2, 3]], "public", loss_mask=numpy.array([1, 0, 0], numpy.uint8)),
        {"eval_data": "public.safetensors"}, "public.safetensors: ",
    ),
    "text_too_long": (units(3, 3, 3, POSITIONS + 2), {}, f"at most {POSITIONS + 1} tokens for this model (n_positions), text 3 has"),
    "batch_larger_than_n": (
        nothing, {"expected_batch": str(UNITS + 1)},
        f"at most the number of texts in data.safetensors ({UNITS}), got {UNITS + 1}",
    ),
    "no_batch": (nothing, {"expected_batch": None}, "--expected-batch N is needed: how many texts a step draws in the mean"),
    "batch_of_none": (nothing, {"expected_batch": "0"}, "--expected-batch must be >= 1, got 0"),
}  # fmt: skip

BUDGET = {
    "neither_epsilon_nor_noise": (nothing, {"noise_multiplier": None}, "give one of --target-epsilon E and --noise-multiplier S"),
    "both": (nothing, {"target_epsilon": "8"}, "give one of --target-epsilon E and --noise-multiplier S"),
    "epsilon_zero": (nothing, {"noise_multiplier": None, "target_epsilon": "0"}, "--target-epsilon must be finite and > 0, got 0"),
    "epsilon_infinite": (nothing, {"noise_multiplier": None, "target_epsilon": "inf"}, "must be finite and > 0, got inf"),
    "epsilon_not_reachable": (
        nothing, {"noise_multiplier": None, "target_epsilon": "0.001", "steps": str(10**15)},
        "target epsilon must be reachable with a noise multiplier <= 1e+06",
    ),
    "noise_zero": (nothing, {"noise_multiplier": "0"}, "--noise-multiplier must be finite and > 0, got 0"),
    "noise_negative": (nothing, {"noise_multiplier": "-1"}, "--noise-multiplier must be finite and > 0, got -1"),
    "delta_zero": (nothing, {"delta": "0"}, "--delta must lie strictly between 0 and 1, got 0"),
    "delta_one": (nothing, {"delta": "1"}, "--delta must lie strictly between 0 and 1, got 1"),
    "delta_negative": (nothing, {"delta": "-1e-6"}, "--delta must lie strictly between 0 and 1"),
    "clip_norm_zero": (nothing, {"clip_norm": "0"}, "--clip-norm must lie between 1e-30 and 1e30 (sums are float32), got 0"),
    "clip_norm_that_vanishes": (nothing, {"clip_norm": "1e-46"}, "--clip-norm must lie between 1e-30 and 1e30"),
    "steps_and_epochs": (nothing, {"epochs": "1"}, "give one of --steps and --epochs"),
    "neither_steps_nor_epochs": (nothing, {"steps": None}, "give one of --steps and --epochs"),
    "no_steps": (nothing, {"steps": "0"}, "--steps must be >= 1, got 0"),
    "endless_epochs": (nothing, {"steps": None, "epochs": "1e300"}, "--epochs"),
    "key_missing": (nothing, {"noise_key_file": "key"}, "noise key file key cannot be read: No such file"),
    "key_readable_by_others": (key_file(32, 0o644), {"noise_key_file": "key"}, "(mode 0600), has mode 0644"),
    "key_short": (key_file(31, 0o600), {"noise_key_file": "key"}, "must hold exactly 32 bytes, has 31"),
    "key_long": (key_file(33, 0o600), {"noise_key_file": "key"}, "must hold exactly 32 bytes, has 33"),
    "key_is_a_folder": (nothing, {"noise_key_file": "model"}, "noise key file model must be a regular file"),
    "key_is_a_pipe": (lambda work: os.mkfifo(work / "key", 0o600), {"noise_key_file": "key"}, "must be a regular file"),
    "guarantee_without_privacy": (nothing, {"non_private": ""}, "--non-private gives no guarantee"),
    "freeze_matches_nothing": (nothing, {"freeze": "wte*"}, "--freeze must match at least one parameter, 'wte*' matches none"),
    "freeze_everything": (nothing, {"freeze": "*"}, "at least one parameter must stay trainable"),
    "note_of_broken_text": (nothing, {"public_note": "\udcff"}, "UTF-8"),
}  # fmt: skip

FLAGS = {
    "unknown": (nothing, {"fast": ""}, "not expected: --fast (see --help)"),
    "misspelt": (nothing, {"targt_epsilon": "8"}, "--targt-epsilon 8; did you mean --target-epsilon? (see"),
    "part_of_a_name": (nothing, {"warmup": "8"}, "not expected: --warmup 8; did you mean --warmup-steps? (see"),
    "part_of_several_names": (nothing, {"noise": "8"}, "not expected: --noise 8 (see"),
    "epsilon_alone": (nothing, {"epsilon": "8"}, "not expected: --epsilon 8; did you mean --target-epsilon? (see"),
    "of_other_programs": (nothing, {"max_grad_norm": "1"}, "did you mean --clip-norm? (see"),
    "letters_swapped": (nothing, {"clip_nrom=1": ""}, "did you mean --clip-norm?"),
    "stray_word": (nothing, {"allow_nonprivate_metrics": "stray"}, "not expected: stray"),
    "no_value": (nothing, {"seed": ""}, "--seed"),
    "twice": (nothing, {"steps": "2", "expected_batch": "4\0--steps\0002"}, "--steps"),
    "steps_fractional": (nothing, {"steps": "2.5"}, "--steps"),
    "steps_huge": (nothing, {"steps": "9" * 30}, "--steps"),
    "seed_negative": (nothing, {"seed": "-1"}, "--seed"),
    "optimizer_unknown": (nothing, {"optimizer": "adam"}, "--optimizer: adam not in {adamw,adamw8bit,adamw16bit,muon,shampoo,soap,sgd}; did you mean adamw?"),
    "optimizer_like_none": (nothing, {"optimizer": "lion"}, "--optimizer: lion not in {adamw,adamw8bit,adamw16bit,muon,shampoo,soap,sgd} (see"),
    "codes_on_a_model_axis": (nothing, {"gather_dtype": "int8", "mesh": "1x1x2"}, "--gather-dtype int8 codes whole parameters: --mesh must have no model axis, got 1x1x2"),
    "codes_of_nobody": (nothing, {"gather_dtype": "int4"}, "--gather-dtype: int4 not in {compute,int8,float8}"),
    "narrow_masters_of_wide_layers": (nothing, {"master_dtype": "bfloat16"}, "--master-dtype bfloat16 needs --compute-dtype bfloat16, got float32"),
    "masters_of_nobody": (nothing, {"master_dtype": "float16"}, "--master-dtype: float16 not in {float32,bfloat16}"),
    "muon_on_a_model_axis": (nothing, {"optimizer": "muon", "mesh": "1x1x2"}, "--optimizer muon needs whole matrices: --mesh must have no model axis, got 1x1x2"),
    "muon_noise_of_adamw": (nothing, {"muon_noise": "drop"}, "--muon-noise is for --optimizer muon"),
    "muon_noise_correlated": (nothing, {"optimizer": "muon", "muon_noise": "correct", "noise_bands": "2"}, "--muon-noise takes the noise to be independent from step to step: it cannot be combined with --noise-bands"),
    "floor_correlated": (nothing, {"second_moment_floor": "0.1", "noise_chain": "2"}, "--second-moment-floor takes the noise to be independent from step to step"),
    "muon_noise_adaptive": (nothing, {"optimizer": "muon", "muon_noise": "drop", "clipping": "adaptive"}, "--muon-noise takes the noise's variance to be the same in all steps"),
    "muon_heads_of_adamw": (nothing, {"muon_heads": ""}, "--muon-heads is for --optimizer muon"),
    "muon_momentum_one": (nothing, {"optimizer": "muon", "momentum": "1"}, "--momentum must be in [0, 1), got 1"),
    "soap_on_a_model_axis": (nothing, {"optimizer": "soap", "mesh": "1x1x2"}, "--optimizer soap needs whole matrices: --mesh must have no model axis, got 1x1x2"),
    "tiles_of_adamw": (nothing, {"tile_side": "64"}, "--tile-side is for --optimizer shampoo or soap"),
    "tiles_of_nothing": (nothing, {"optimizer": "shampoo", "tile_side": "0"}, "--tile-side must be >= 1, got 0"),
    "refresh_of_muon": (nothing, {"optimizer": "muon", "refresh_every": "5"}, "--refresh-every is for --optimizer shampoo or soap"),
    "refresh_never": (nothing, {"optimizer": "soap", "refresh_every": "0"}, "--refresh-every must be >= 1, got 0"),
    "factor_decay_one": (nothing, {"optimizer": "shampoo", "factor_decay": "1"}, "--factor-decay must be in [0, 1), got 1"),
    "momentum_of_shampoo": (nothing, {"optimizer": "shampoo", "momentum": "0.9"}, "--momentum is for --optimizer sgd or muon"),
    "floor_of_sgd": (nothing, {"optimizer": "sgd", "second_moment_floor": "0.1"}, "--second-moment-floor is for --optimizer adamw, adamw8bit or adamw16bit"),
    "floor_zero": (nothing, {"second_moment_floor": "0"}, "--second-moment-floor must be finite and > 0, got 0"),
    "floor_without_noise": (nothing, {"non_private": "", "noise_multiplier": None, "second_moment_floor": "0.1"}, "which --non-private has none of"),
    "momentum_of_adamw": (nothing, {"momentum": "0.9"}, "--momentum is for --optimizer sgd"),
    "momentum_one": (nothing, {"optimizer": "sgd", "momentum": "1"}, "--momentum must be in [0, 1), got 1"),
    "learning_rate_zero": (nothing, {"learning_rate": "0"}, "--learning-rate must be finite and > 0, got 0"),
    "lr_schedule_unknown": (nothing, {"lr_schedule": "step"}, "--lr-schedule: step not in {constant,linear,cosine}"),
    "warmup_of_the_whole_run": (nothing, {"warmup_steps": "3"}, "--warmup-steps must be fewer than the run's 3 steps, got 3"),
    "floor_above_the_peak": (nothing, {"lr_schedule": "linear", "min_learning_rate": "1"}, "--min-learning-rate must lie between"),
    "floor_of_a_constant": (nothing, {"min_learning_rate": "1e-4"}, "is for --lr-schedule linear or cosine"),
    "lora_rank_fractional": (nothing, {"lora_rank": "1.5"}, "--lora-rank"),
    "lora_alpha_alone": (nothing, {"lora_alpha": "1"}, "--lora-alpha needs --lora-rank"),
    "lora_targets_alone": (nothing, {"lora_targets": "attn.c_proj"}, "--lora-targets needs --lora-rank"),
    "lora_alpha_zero": (nothing, {"lora_rank": "1", "lora_alpha": "0"}, "--lora-alpha must be finite and > 0, got 0"),
    "lora_target_unknown": (nothing, {"lora_rank": "1", "lora_targets": "attn.c_attn,q_proj"}, "'q_proj' names none"),
    "microbatch_zero": (nothing, {"microbatch": "0"}, "--microbatch must be >= 1, got 0"),
    "device_unknown": (nothing, {"device": "tpu"}, "--device must be cpu, cuda (each rank the device of its LOCAL_RANK) or cuda:N, got 'tpu'"),
    "device_not_there": (nothing, {"device": "cuda:1"}, "device cuda:1: this "),
    "offload_without_device": (nothing, {"offload_optimizer": ""}, "--offload-optimizer moves the optimizer from a device to host memory: it needs --device cuda"),
    "noise_offload_without_device": (nothing, {"offload_noise": "", "noise_bands": "2"}, "--offload-noise moves what --noise-bands or --noise-blt keep from a device to host memory: it needs one of them, and --device cuda"),
    "device_of_generation": (nothing, {"device": "cuda", "generate_tokens": "1"}, "--device is for training"),
    "timeout_zero": (nothing, {"timeout": "0"}, "--timeout must be >= 1 second, got 0"),
    "eval_every_negative": (nothing, {"eval_every": "-1"}, "--eval-every must be >= 0, got -1"),
    "eval_every_of_nothing": (nothing, {"eval_every": "2"}, "--eval-every needs --eval-data FILE"),
    "no_output": (nothing, {"output": None}, "--output DIR is needed"),
    "output_is_a_file": (nothing, {"output": "data.safetensors"}, "--output must be a folder, data.safetensors is a file"),
    "output_below_a_file": (nothing, {"output": "data.safetensors/run"}, "data.safetensors"),
    "output_is_a_link_to_nowhere": (link_to_nowhere, {}, "run is a link to what is not there"),
    "output_below_a_link_to_nowhere": (link_to_nowhere, {"output": "run/1"}, "run is a link to what is not there"),
    "output_holds_another_run": (other_run, {}, "--output must be new or empty, run already holds a run or other files"),
    "config_missing": (nothing, {"config": "nothing.toml"}, "nothing.toml was not readable"),
    "config_with_unknown_name": (
        lambda work: (work / "c.toml").write_text("detla = 1e-9\n"), {"config": "c.toml"}, "detla is none, did you mean delta?",
    ),
    "config_with_wrong_value": (
        lambda work: (work / "c.toml").write_text("microbatch = \"many\"\n"), {"config": "c.toml"}, "--microbatch",
    ),
    "generate_and_no_model": (nothing, {"model": None, "generate_tokens": "1"}, "--generate-tokens needs --model DIR"),
    "generate_unknown_token": (nothing, {"generate_tokens": "1,32"}, "token ids must lie in [0, 32), got 32"),
    "generate_no_numbers": (nothing, {"generate_tokens": "1,a"}, "whole numbers separated by commas, got '1,a'"),
    "generate_cold": (nothing, {"generate_tokens": "1", "temperature": "-1"}, "--temperature must be finite and >= 0, got -1"),
}  # fmt: skip
for flag in NAN_FLAGS:
    FLAGS[f"nan_{flag}"] = (nothing, {flag.replace("-", "_"): "nan"} | (
        {"noise_multiplier": None} if flag == "target-epsilon" else {}), f"--{flag} must")  # fmt: skip

MISTAKES = {
    f"{part}-{name}": case
    for part, table in {"model": MODEL, "data": DATA, "budget": BUDGET, "flags": FLAGS}.items()
    for name, case in table.items()
}


def command_line(changes: dict) -> list[str]:
    return [word for argument in arguments(PRIVATE, **changes) for word in argument.split("\0")]


def make_mistake(binary: Path, folder: Path, change, flags: dict) -> tuple[Finished, dict, dict]:
    write_inputs(folder)
    change(folder)
    before = everything_in(folder)
    program = Program(binary, folder)
    try:
        return program.run(command_line(flags), seconds=20), before, everything_in(folder)
    finally:
        program.kill_all()


@pytest.fixture(scope="module")
def mistakes_made(request, binary, tmp_path_factory):
    """Futures of all mistakes whose tests will run: starting the program is what takes time, so two start at once."""
    folder = tmp_path_factory.mktemp("mistakes")
    calls = [item.callspec for item in request.session.items if "mistake" in getattr(item, "fixturenames", ())]
    pool = ThreadPoolExecutor(2)
    yield {
        call.params["mistake"]: pool.submit(make_mistake, binary, folder / call.id, *MISTAKES[call.params["mistake"]][:2])
        for call in calls
    }
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_in_one_sentence_and_leaves_every_file_as_it_was(mistakes_made, mistake):
    done, before, after = mistakes_made[mistake].result()
    assert MISTAKES[mistake][2] in done.err
    assert done.code == 2
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert done.out == ""
    assert after == before


ON_RANKS = {
    "before_the_ranks_meet": (nothing, {"expected_batch": "25"}, "got 25"),
    "unknown_flag": (nothing, {"fast": ""}, "not expected: --fast"),
    "while_weights_are_read": (
        lambda work: write_model(work / "model", change=without("transformer.ln_f.bias")), {}, "'transformer.ln_f.bias' is missing",
    ),
    "while_the_model_is_built": (nothing, {"freeze": "wte*"}, "'wte*' matches none"),
    "key_file": (key_file(31, 0o600), {"noise_key_file": "key"}, "has 31"),
    "output_holds_another_run": (other_run, {}, "run already holds a run"),
}  # fmt: skip


@pytest.mark.parametrize("change, flags, message", ON_RANKS.values(), ids=ON_RANKS.keys())
def test_every_rank_says_so_and_exits_with_2(program, change, flags, message):
    change(program.folder)
    before = everything_in(program.folder)
    words = command_line({"timeout": "20", **flags})
    for rank, done in enumerate(program.run_ranks(words, words)):
        assert message in done.err
        assert done.err.startswith(f"rank {rank}: error: ") and done.err.count("\n") == 1
        assert done.code == 2
    assert everything_in(program.folder) == before
