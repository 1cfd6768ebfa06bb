"""A plugin of tests that read folders of MIDI files: their events are kept apart from the user's."""

from collections.abc import Iterator

import pytest

from relattn_lab.played import kept


@pytest.fixture(autouse=True, scope="session")
def _events_kept_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "FOLDER", tmp_path_factory.mktemp("events"))
        yield
