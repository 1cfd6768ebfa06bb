"""Pages that play four-part music: a piano roll that moves, a soft sound, and what every note looks at."""

from relattn_lab.listen.attended import Attended, attended_by
from relattn_lab.listen.page import STYLE, page, player
from relattn_lab.listen.tune import Tune

__all__ = ["STYLE", "Attended", "Tune", "attended_by", "page", "player"]
