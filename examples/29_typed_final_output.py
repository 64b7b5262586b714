"""The final output as a value of a type; a validator may refuse it, and a repair gives another text, once."""

from pydantic import BaseModel
from support import fail, runner

from vv_agent import Agent, NoToolPolicy, OutputValidation, OutputValidationResult


class Invoice(BaseModel):
    number: int
    total: float


def check(invoice, context):
    return OutputValidationResult.ok() if invoice.total > 0 else OutputValidationResult.fail("no_total", "it is free")


def repair(request):
    return request.invalid_output.replace('"total": 0.0', '"total": 12.5')


agent = Agent(
    name="reader",
    instructions='Read the invoice. Answer with nothing but JSON of the form {"number": 1, "total": 2.5}.',
    no_tool_policy=NoToolPolicy.FINISH,
    output_type=Invoice,
    output_validation=OutputValidation(validator=check, repair=repair),
)


def main() -> None:
    result = runner('{"number": 7, "total": 0.0}').run_sync(agent, "Invoice no. 7, total 12.50 euros.")
    print(f"{result.status.value}: {result.final_output!r}")
    if result.final_output != Invoice(number=7, total=12.5):
        fail("this is not the invoice")


if __name__ == "__main__":
    main()
