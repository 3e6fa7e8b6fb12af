"""Values that the collector of cycles leaves alone."""

import gc

from dranode.driver.process.collector import values_that_stay


def test_no_search_for_cycles_goes_through_values_that_stay() -> None:
    try:
        with values_that_stay():
            assert not gc.isenabled()
            kept = [[number] for number in range(100)]
        assert gc.isenabled()
        assert not any(each is kept for each in gc.get_objects())
        assert gc.get_freeze_count() > len(kept)
    finally:
        gc.unfreeze()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with values_that_stay():
            pass
        assert not gc.isenabled()
    finally:
        gc.unfreeze()
        gc.enable()
