"""Whatever a manifest's style: an edit does just what was asked, outside of it no byte moves, and it can be undone."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.manifests.manifest_texts import PATH, container, lines, manifests, scripts, template, values

from trimtab.manifests.documents import Document
from trimtab.manifests.yaml_edit import edit_document

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
KEYS = ("command", "args")


def with_lists(document: Document, **lists: list[str] | None) -> dict[str, Any]:
    after = copy.deepcopy(template(document))
    body = after["spec"]["containers"][0]
    for key, items in lists.items():
        if items:
            body[key] = items
        else:
            body.pop(key, None)
    return after


def edited(document: Document, after: dict[str, Any]) -> Document:
    text = edit_document(document, {PATH: after})
    data = yaml.safe_load(text)
    wanted = copy.deepcopy(document.data)
    wanted["spec"]["template"] = after
    assert data == wanted
    return replace(document, text=text, data=data)


def outside(text: str) -> tuple[str, str]:
    """What stands before the image's line and behind the lists."""
    return text[: text.index("image:")], text[text.index("        ports:") :]


def a_list(document: Document, data: st.DataObject) -> tuple[str, list[str]]:
    keys = [key for key in KEYS if key in container(document)]
    assume(keys)
    key = data.draw(st.sampled_from(keys))
    return key, list(container(document)[key])


@SLOW
@given(manifests(), st.data())
def test_a_replaced_item_is_the_only_change_and_its_old_value_restores_the_text(
    document: Document, data: st.DataObject
) -> None:
    key, items = a_list(document, data)
    at = data.draw(st.integers(0, len(items) - 1))
    new = data.draw(st.one_of(values, lines))
    assume("\n" not in items[at])
    changed = [*items[:at], new, *items[at + 1 :]]
    after = edited(document, with_lists(document, **{key: changed}))
    assert outside(after.text) == outside(document.text)
    assert edit_document(after, {PATH: template(after)}) == after.text
    back = edited(after, with_lists(after, **{key: items}))
    assert back.data == document.data


@settings(SLOW, max_examples=25)
@given(manifests(), st.data())
def test_a_number_inside_a_word_is_replaced_in_place_in_every_style(document: Document, data: st.DataObject) -> None:
    key, items = a_list(document, data)
    found = [i for i, item in enumerate(items) if "32" in item]
    assume(found)
    at = data.draw(st.sampled_from(found))
    changed = [*items[:at], items[at].replace("32", "48", 1), *items[at + 1 :]]
    after = edited(document, with_lists(document, **{key: changed}))
    assert len(after.text) == len(document.text)
    assert sum(a != b for a, b in zip(after.text, document.text, strict=True)) == 2
    assert edited(after, with_lists(after, **{key: items})).text == document.text


@SLOW
@given(manifests(), st.data())
def test_words_added_to_a_script_stand_in_it_and_leave_without_a_trace(document: Document, data: st.DataObject) -> None:
    key, items = a_list(document, data)
    at = data.draw(st.integers(0, len(items) - 1))
    added = data.draw(st.sampled_from([" --max-num-seqs 48", " \\\n  --max-num-seqs 48"]))
    changed = [*items[:at], items[at] + added, *items[at + 1 :]]
    after = edited(document, with_lists(document, **{key: changed}))
    assert outside(after.text) == outside(document.text)
    assert edited(after, with_lists(after, **{key: items})).data == document.data


@SLOW
@given(manifests(), st.data())
def test_inserted_items_are_lines_of_their_own_and_removed_again_restore_the_text(
    document: Document, data: st.DataObject
) -> None:
    key, items = a_list(document, data)
    at = data.draw(st.integers(1, len(items)))
    new = data.draw(st.lists(values, min_size=1, max_size=3))
    assume(not set(new) & set(items))
    changed = [*items[:at], *new, *items[at:]]
    after = edited(document, with_lists(document, **{key: changed}))
    assert outside(after.text) == outside(document.text)
    assert edited(after, with_lists(after, **{key: items})).text == document.text


@SLOW
@given(manifests(), st.data())
def test_removed_items_take_their_lines_and_nothing_else(document: Document, data: st.DataObject) -> None:
    key, items = a_list(document, data)
    assume(len(items) > 1)
    start = data.draw(st.integers(0, len(items) - 1))
    end = data.draw(st.integers(start + 1, len(items)))
    after = edited(document, with_lists(document, **{key: [*items[:start], *items[end:]]}))
    assert outside(after.text) == outside(document.text)


@SLOW
@given(manifests(), st.lists(st.one_of(values, scripts), min_size=1, max_size=3))
def test_args_added_where_there_were_none_go_without_a_trace(document: Document, new: list[str]) -> None:
    assume("args" not in container(document))
    after = edited(document, with_lists(document, args=new))
    assert outside(after.text) == outside(document.text)
    assert edited(after, with_lists(after, args=None)).text == document.text


@SLOW
@given(manifests(), st.data())
def test_two_edits_far_apart_are_both_made(document: Document, data: st.DataObject) -> None:
    key, items = a_list(document, data)
    changed = [item.replace("32", "48") for item in items] + ["--enable-prefix-caching"]
    after = edited(document, with_lists(document, **{key: changed}))
    assert outside(after.text) == outside(document.text)
