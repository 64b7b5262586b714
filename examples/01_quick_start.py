"""One task on one client, by the low-level runtime."""

from support import WORKSPACE, client, show

from vv_agent import AgentRuntime, AgentTask, RuntimeRunControls
from vv_agent.prompt import BuildSystemPromptOptions, build_system_prompt_with_options
from vv_agent.testing import call


def main() -> None:
    llm, model = client(
        call("write_file", {"path": "hello.txt", "content": "Hello.\n"}),
        call("task_finish", {"message": "hello.txt says hello."}),
    )
    options = BuildSystemPromptOptions(language="en-US", use_workspace=True, enable_todo_management=False)
    task = AgentTask(
        task_id="quick-start",
        model=model,
        system_prompt=build_system_prompt_with_options("You write files.", options),
        user_prompt="Write a greeting into hello.txt, then finish.",
        max_cycles=6,
    )
    show(AgentRuntime(llm).run(task, controls=RuntimeRunControls(workspace=WORKSPACE)))


if __name__ == "__main__":
    main()
