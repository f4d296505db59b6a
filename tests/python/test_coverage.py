"""bench/coverage.py: models and loops, right or refused with a sentence. A part of its tables here; the whole is for `make test-long`."""

import importlib.util
import json
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

SOME = (
    "gpt2 (CausalLM): all parameters", "opt (CausalLM): all parameters", "mixtral router_loss (CausalLM): all parameters", "gemma (CausalLM): LoRA",
    "mamba (CausalLM): frozen parts", "mpnet (MaskedLM): all parameters", "deberta (MaskedLM): all parameters", "bert spans (QuestionAnswering): LoRA",
    "t5 (Seq2SeqLM): all parameters", "bart (Seq2SeqLM): frozen parts", "vit (ImageClassification): all parameters",
    "whisper (SpeechSeq2Seq): LoRA", "swin (ImageClassification): LoRA", "clip (ZeroShotImageClassification): all parameters", "llama: DoRA",
    "llama: IA3", "gpt2: AdaLoRA", "gpt2: prompt tuning", "llama: LoRA on embeddings", "llama: VB-LoRA",
)  # fmt: skip


@pytest.fixture(scope="module")
def coverage(repository):
    spec = importlib.util.spec_from_file_location("coverage_tables", repository / "bench" / "coverage.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


@pytest.fixture(scope="module")
def results(coverage):
    return json.loads(coverage.RESULTS.read_text())


def assert_covered(found: dict, name: str, documented: dict) -> None:
    assert found["kind"] in ("right", "refused", "not by PEFT", "not by FSDP2"), (name, found)
    assert found["kind"] == documented["kind"], (name, found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SOME)
def test_a_model_is_right_or_refused_as_documented(coverage, results, name):
    row = next(row for row in coverage.rows() if row.name == name)
    assert_covered(coverage.verdict_of(row), name, results["models"][name])


def test_a_sharded_model_is_as_documented(coverage, results):
    """A vision transformer and a speech model have parameters of their own beside blocks that are sharded apart."""
    names = ["vit (ImageClassification): all parameters", "wav2vec2 (AudioClassification): all parameters"]
    for name, found in coverage.sharded(names).items():
        assert_covered(found, name, results["sharded"][name])


def assert_stated(found: dict) -> None:
    assert found["kind"] in ("taken", "refused"), found
    assert found["stated"] >= found["executed"] * (1 - 1e-12), found


@pytest.mark.filterwarnings("ignore")
def test_no_loop_executes_more_than_is_stated(coverage, results):
    documented = {each["loop"]: each for each in results["loops"]}
    for each in coverage.LOOPS:
        if each.options.get("workers"):
            continue  # in the long one
        found = coverage.outcome(each)
        assert_stated(found)
        assert found["kind"] == documented[each.name]["kind"], found
        assert abs(found["stated"] - documented[each.name]["stated"]) < 5e-3, found


def test_the_documents_tables_are_those_of_the_results(coverage, results):
    document = coverage.DOCS.read_text()
    assert coverage.put(document, "models", coverage.table_of_models(results)) == document
    assert coverage.put(document, "loops", coverage.table_of_loops(results)) == document
    assert len({row.family.name for row in coverage.rows()}) >= 40 and len(coverage.LOOPS) >= 30
    assert all(verdict["kind"] != "wrong" for verdict in [*results["models"].values(), *results["sharded"].values()])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_whole_is_as_documented(coverage, results):
    found = coverage.measured()
    for table in ("models", "sharded"):
        for name, verdict in found[table].items():
            assert_covered(verdict, name, results[table][name])
    for each in found["loops"]:
        assert_stated(each)
