"""An agent of Pydantic AI at one MCP endpoint. Run with that framework's Python and `{"url": ..., "say": ...}`.

The framework does all that it does with a model: it lists tools, checks what the model calls against their schemas,
and gives it the results. The model is a function: where there is `find_tools`, it looks for a tool that echoes and
calls what it finds by `call_tool`; else it calls the first tool whose name ends with `echo`. The report, one line of
JSON: the tools that the model was shown, what it got for each call, and what the agent said in the end.
"""

import json
import sys
from typing import Any

import anyio
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

JOB: dict[str, Any] = json.loads(sys.argv[1])
shown: list[str] = []
got: list[str] = []


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    shown[:] = sorted(tool.name for tool in info.function_tools)
    last = messages[-1].parts[-1]
    said = {"text": JOB["say"]}
    if not isinstance(last, ToolReturnPart):
        if "find_tools" in shown:
            return ModelResponse(parts=[ToolCallPart("find_tools", {"query": "echo what I say", "limit": 3})])
        return ModelResponse(parts=[ToolCallPart(next(name for name in shown if name.endswith("echo")), said)])
    got.append(last.model_response_str())
    if last.tool_name == "find_tools":
        found = json.loads(got[-1])
        name = next(tool["name"] for tool in found["tools"] if tool["name"].endswith("echo"))
        return ModelResponse(parts=[ToolCallPart("call_tool", {"name": name, "arguments": said})])
    return ModelResponse(parts=[TextPart(f"It said {got[-1]}")])


async def main() -> None:
    agent = Agent(FunctionModel(model), toolsets=[MCPToolset(JOB["url"])])
    done = await agent.run("Have something echoed.")
    print(json.dumps({"shown": shown, "got": got, "said": done.output}))


anyio.run(main)
