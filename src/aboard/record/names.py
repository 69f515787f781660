"""Names of runs: they sort by time, and a person can say and type them."""

from datetime import datetime
from random import Random

_HOW = (
    "able apt awake bold brave brief bright brisk busy calm civil clear clever cool crisp deft eager early exact fair "
    "fast fine firm fleet fond frank free fresh full glad good grand great happy hardy hearty honest jolly keen kind "
    "late light lively loyal lucky merry mild neat nimble noble patient plain prompt proud quick quiet ready robust "
    "sharp smart snug solid sound spry steady still stout strong sunny sure swift tall tidy true trusty vivid warm wise"
)
_WHO = (
    "adder badger beaver bison bream camel carp condor cod crane crow deer dingo dove duck eagle egret eland falcon "
    "ferret finch fox gannet gecko goose grouse gull hare hawk heron horse hound ibis ibex jay kite koala lark lemur "
    "linnet lion lynx magpie marten mole moose newt ocelot oriole otter owl panda perch pike plover puffin puma quail "
    "rabbit raven robin rook salmon seal shrew skua sloth snipe sparrow stoat stork swallow swan tapir tern thrush "
    "tiger toad trout turtle viper vole walrus weasel whale wolf wombat wren yak zebra"
)


def new_run_id(now: datetime, random: Random) -> str:
    """Such as `20261115-0507-brave-otter`."""
    return f"{now:%Y%m%d-%H%M}-{random.choice(_HOW.split())}-{random.choice(_WHO.split())}"
