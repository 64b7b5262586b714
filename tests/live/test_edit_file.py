"""The thirteenth: an edit that fails harms nothing, and the model finds its way."""

from __future__ import annotations

from tests.live.conftest import LIVE, Place, results_of
from vv_agent import Agent


def test_the_model_recovers_from_an_edit_that_failed(place: Place) -> None:
    path = place.workspace / "prices.txt"
    path.write_text("apple 1\npear 2\n")
    wrong = {"path": "prices.txt", "old_string": "pear 3", "new_string": "pear 5"}
    place.plays([
        [("edit_file", wrong)], [("read_file", {"path": "prices.txt"})], [("edit_file", wrong)],
        [("edit_file", {**wrong, "old_string": "pear 2"})], [("task_finish", {"message": "A pear costs 5."})],
    ])  # fmt: skip
    agent = Agent(name="editor", instructions="Use edit_file. When it fails, read the file and try again; task_finish.")
    result = place.run(
        agent, "In prices.txt replace 'pear 3' by 'pear 5' with edit_file; whatever the price is now, it is to be 5."
    )
    assert (result.status, path.read_text()) == ("completed", "apple 1\npear 5\n")
    codes = [one.error_code for one in results_of(result, "edit_file")]
    assert codes[-1] is None
    assert LIVE or codes[:2] == ["file_not_read", "old_string_not_found"]
