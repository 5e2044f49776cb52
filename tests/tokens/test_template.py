"""Chat templates: the same text as transformers' apply_chat_template, and engines' way with odd messages."""

from pathlib import Path
from typing import Any

import pytest

from router.tokens.book import TokenizerEntry
from router.tokens.template import ChatTemplate, TemplateFailed
from router.wire.openai_request import ChatPrompt
from tests.tokens.vocabularies import CHATML, byte_level, write_folder

SMOLLM_LIKE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3_LIKE = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You have access to functions:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson + "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + message.content + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
QWEN_LIKE = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- if message.reasoning_content and loop.index0 > ns.last_query_index %}{{- message.reasoning_content }}{%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
            {%- set arguments = tool_call.function.arguments %}
            {{- arguments if arguments is string else arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
TRAINING_LIKE = """{% for m in messages %}
    {% if m.role == 'skip' %}{% continue %}{% endif %}
    {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}
{% else %}<{{ m.role }}>{{ m.content }}
    {% endif %}
{% endfor %}{{ documents | length if documents else 0 }}"""
TEMPLATES = {"smollm": SMOLLM_LIKE, "llama3": LLAMA3_LIKE, "qwen": QWEN_LIKE, "training": TRAINING_LIKE}

TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Wetter für <Ort> & Tag", "parameters": {"type": "object"}},
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln", "day": 2}}}
PLAIN = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Hi <b>there</b> & you"},
    {"role": "assistant", "content": "<think>hm</think>\n\nHello"},
    {"role": "user", "content": "日本語?\n"},
]
CHATS: dict[str, list[dict[str, Any]]] = {
    "plain": PLAIN,
    "no-system": PLAIN[1:],
    "tool-call": [
        *PLAIN,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1"},
    ],
    "reasoning": [*PLAIN, {"role": "assistant", "content": "so", "reasoning_content": "because"}],
}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("options", [{}, {"tools": TOOLS}, {"add_generation_prompt": False}, {"continue_final_message": True}])
def test_parity_with_transformers(template: str, chat: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The text is transformers' own, for templates with tools, trimming, namespaces, loop controls and generation marks."""
    transformers = pytest.importorskip("transformers")
    folder = write_folder(
        tmp_path / "t", byte_level((r"\p{N}",)), bos_token="<s>", eos_token="</s>", chat_template=TEMPLATES[template]
    )
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    given = {"add_generation_prompt": not options.get("continue_final_message"), **options}
    expected = reference.apply_chat_template(CHATS[chat], tokenize=False, enable_thinking=False, **given)
    prompt = ChatPrompt(CHATS[chat], template_kwargs={"enable_thinking": False}, **options)
    ours = ChatTemplate({"default": TEMPLATES[template]}, {"bos_token": "<s>", "eos_token": "</s>"})
    assert ours.render(prompt) == expected


def test_parity_on_the_real_model(smollm: TokenizerEntry) -> None:
    """SmolLM2's own template, taken from its GGUF file."""
    text, affixed = smollm.chat_text(ChatPrompt([{"role": "user", "content": "Hi"}]))
    assert affixed
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def render(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return ChatTemplate({"default": source}, {}).render(ChatPrompt(messages, **options))


def test_content_in_parts_becomes_text() -> None:
    """A template that reads text gets parts joined by line ends, null as nothing, and the body stays as it was."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}]}]
    before = repr(messages)
    assert render(CHATML, messages, add_generation_prompt=False) == "<|im_start|>user\na\nb\nc<|im_end|>\n"
    assert repr(messages) == before
    assert render("{{ messages[0].content }}|", [{"role": "assistant", "content": None}]) == "|"
    assert render("{{ messages[0].content }}|", [{"role": "assistant", "name": "x"}]) == "|"


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for p in m['content'] %}[{{ p['text'] }}]{% endfor %}{% endfor %}",
        "{% for m in messages %}{% set c = m.content %}{% for p in c %}[{{ p.text }}]{% endfor %}{% endfor %}",
        "{% macro show(content) %}{% for p in content %}[{{ p.text }}]{% endfor %}{% endmacro %}"
        "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    ],
    ids=["attribute", "item", "assigned", "macro"],
)
def test_templates_that_read_parts_get_parts(source: str) -> None:
    """Content goes in parts where the template loops over it, as in vLLM; text is one part, null none."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
    ]
    assert render(source, messages) == "[a][b][c]"
    assert render(source, messages[:1], continue_final_message=True) == "[a"


def test_developer_is_system_where_unknown() -> None:
    """vLLM's rule: a template without the developer role sees system instead."""
    messages = [{"role": "developer", "content": "x"}]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{% if false %}developer{% endif %}{{ messages[0].role }}", messages) == "developer"


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ({"function": {"arguments": '{"a": "ü"}'}}, '{"a": "ü"}'),
        ({"function": {"arguments": ""}}, "{}"),
        ({"function": {"arguments": "{broken"}}, '"{broken"'),
        ({"function": {"arguments": {"a": 1}}}, '{"a": 1}'),
    ],
)
def test_tool_call_arguments_are_objects(call: dict[str, Any], shown: str) -> None:
    """Arguments come as JSON text and templates write them as JSON: so they are parsed first, if they can be."""
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", messages) == shown


def test_odd_tool_calls_do_not_break() -> None:
    """Tool calls of another shape are the template's business."""
    messages = [{"role": "assistant", "content": "", "tool_calls": ["x", {"function": None}]}]
    assert render("{{ messages[0].tool_calls | length }}", messages) == "2"
    assert render("{{ messages[0].tool_calls }}", [{"role": "assistant", "content": "", "tool_calls": "x"}]) == "x"


def test_variables_and_their_order() -> None:
    """The request's template arguments beat special tokens; what it states apart beats both; effort sets thinking."""
    template = ChatTemplate(
        {"default": "{{ bos_token }}{{ reasoning_effort }}{{ enable_thinking }}{{ messages | length }}"}, {"bos_token": "<s>"}
    )
    messages = [{"role": "user", "content": "x"}]
    assert template.render(ChatPrompt(messages)) == "<s>1"
    kwargs = {"bos_token": "B", "messages": [], "enable_thinking": True}
    assert template.render(ChatPrompt(messages, template_kwargs=kwargs)) == "BTrue1"
    assert template.render(ChatPrompt(messages, reasoning_effort="none")) == "<s>noneFalse1"


def test_tool_use_template() -> None:
    """With tools the template named tool_use is taken where there is one."""
    template = ChatTemplate({"default": "d", "tool_use": "t"}, {})
    messages = [{"role": "user", "content": "x"}]
    assert template.render(ChatPrompt(messages)) == "d"
    assert template.render(ChatPrompt(messages, tools=TOOLS)) == "t"


def test_the_clock_is_todays() -> None:
    """strftime_now is there: such a template breaks prefixes daily, with the engine as with us."""
    assert len(render("{{ strftime_now('%Y-%m-%d') }}", [{"role": "user", "content": "x"}])) == 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system') }}",
        "{{ messages[0].content + 5 }}",
        "{{ messages[7].content }}",
        "{{ ().__class__.__mro__[1].__subclasses__() }}",
        "{% set _ = messages.append(1) %}",
        "{{ 1 // 0 }}",
    ],
    ids=["raises", "type", "index", "escape", "mutation", "zero"],
)
def test_failures_are_one_error(source: str) -> None:
    """Whatever a template does, TemplateFailed comes out; a sandboxed one reaches no internals and changes no input."""
    with pytest.raises(TemplateFailed):
        render(source, [{"role": "user", "content": "x"}])


def test_continuing_a_message_that_is_not_shown_fails() -> None:
    """The tag must come back out of the template; a final message without text cannot be continued."""
    with pytest.raises(TemplateFailed):
        render("nothing", [{"role": "assistant", "content": "x"}], continue_final_message=True)
    parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateFailed):
        render(parts, [{"role": "assistant", "content": None}], continue_final_message=True)


def test_trimmed_final_message() -> None:
    """A template that trims content leaves no trailing space to continue after."""
    source = "{{ messages[0].content | trim }}END"
    assert render(source, [{"role": "assistant", "content": "say  "}], continue_final_message=True) == "say"
