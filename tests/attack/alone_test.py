"""What a bystander sees of a server that nobody attacks, for the attacks' page to compare with."""

import os
import time

import pytest


@pytest.mark.skipif("TANDEM_ATTACK_RECORD" not in os.environ, reason="asserts nothing")
def test_a_bystander_alone(attack):
    with attack().bystander():
        time.sleep(2)
