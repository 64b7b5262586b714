"""output_validation.json: the host's validator, and at most one repair."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.contract.aside import Cases
from tests.contract.fixtures import load
from tests.runs import Host, Outcome
from vv_agent import OutputRepairRequest, OutputValidation, OutputValidationContext, OutputValidationResult
from vv_agent.checkpoint.memory import MemoryStore

FIXTURE = load("output_validation.json")
CASES = Cases("output_validation.json")
OK, NO = OutputValidationResult.ok(), OutputValidationResult.fail("not_good", "it is not good")
VERDICTS = {
    "would_fail": [NO], "pass": [OK], "fail": [NO], "fail_then_pass": [NO, OK], "always_fail": [NO, NO, NO],
}  # fmt: skip


class Fakes:
    """A validator that gives these verdicts, and a repair."""

    def __init__(self, verdicts: list[Any], repaired: str = "repaired") -> None:
        self._verdicts, self._repaired = verdicts, repaired
        self.outputs: list[Any] = []
        self.contexts: list[OutputValidationContext] = []
        self.requests: list[OutputRepairRequest] = []

    def validate(self, output: Any, context: OutputValidationContext) -> Any:
        self.outputs.append(output)
        self.contexts.append(context)
        return self._verdicts.pop(0)

    def repair(self, request: OutputRepairRequest) -> str:
        self.requests.append(request)
        if self._repaired == "raises_provider_error":
            raise OSError("the provider is down")
        return {"returns_valid": "repaired", "returns_invalid": "still invalid"}.get(self._repaired, self._repaired)


def run(folder: Path, validation: OutputValidation, output: str = "invalid", **agent: Any) -> Outcome:
    place = Host(MemoryStore(), folder, checkpoint=None, agent={"output_validation": validation, **agent})
    return place.run([output])


@pytest.mark.parametrize("case", FIXTURE["runner_cases"], ids=lambda case: case["name"])
def test_a_case_through_the_runner(case: dict[str, Any], tmp_path: Path) -> None:
    with CASES.run(case["name"]):
        fakes, expected, config = (
            Fakes(list(VERDICTS[case["validator"]]), case.get("repair", "")),
            case["expected"],
            case["config"],
        )
        repair = fakes.repair if "repair" in case or "repair" not in config else None
        validation = OutputValidation(
            validator=fakes.validate, repair=repair, enabled=config["enabled"], max_repairs=config.get("max_repairs", 1)
        )
        outcome = run(tmp_path, validation, "valid" if case["validator"] == "pass" else "invalid")
        raw = outcome.ok.raw_result
        seen = {
            "validator_calls": len(fakes.outputs),
            "repair_calls": len(fakes.requests),
            "status": raw.status,
            "final_output": outcome.ok.final_output,
            "error_code": raw.error_code,
            "trace_unchanged": outcome.types()
            == Host(MemoryStore(), tmp_path, checkpoint=None).run(["invalid"]).types(),
            "second_repair_attempted": len(fakes.requests) > 1,
            "provider_error_is_observed": "the provider is down" in str(raw.error),
        }
        assert {name: seen[name] for name in expected} == expected
        assert outcome.model_calls == 1, "the main model is not called again"
        if raw.status == "failed":
            assert (raw.partial_output, raw.final_answer, raw.completion_reason) == ("invalid", None, "failed")


def test_what_is_given_to_the_callbacks(tmp_path: Path) -> None:
    with CASES.run("validator"), CASES.run("repair"):
        fakes = Fakes([NO, OK])
        validation = OutputValidation(validator=fakes.validate, repair=fakes.repair, repair_model="other/model")
        outcome = run(tmp_path, validation)
        (request,) = fakes.requests
        assert [item.name for item in dataclasses.fields(request)] == FIXTURE["repair"]["request_fields"]
        assert request == OutputRepairRequest(
            invalid_output="invalid", validation_code="not_good", validation_message="it is not good",
            model="other/model", model_settings=None,
        )  # fmt: skip
        assert request.tools == ()
        assert fakes.contexts[0] == OutputValidationContext(outcome.ok.run_id, "checkpoint-agent", None)
        broken = [OutputValidationResult(True, "code"), OutputValidationResult(False, " "), "no result"]
        for verdict in broken:
            fakes = Fakes([verdict])
            failed = run(tmp_path, OutputValidation(validator=fakes.validate, repair=fakes.repair)).ok.raw_result
            assert failed.error is not None
            assert failed.error.startswith("output_validation_failed: output_validator_contract_invalid")
            assert fakes.requests == []


def test_the_defaults() -> None:
    with CASES.run("defaults"):
        wanted, ours = FIXTURE["defaults"], OutputValidation()
        assert (ours.enabled, ours.max_repairs) == (wanted["enabled"], wanted["max_repairs"])
        assert (ours.repair_model, ours.repair_model_settings) == (
            wanted["repair_model"], wanted["repair_model_settings"],
        )  # fmt: skip
