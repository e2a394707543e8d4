"""What goes wrong has a class of its own and says what to do."""

import asyncio
import os
import pickle
import re
import traceback
import warnings

import pytest

import rgaps


def test_every_error_is_an_rgaps_error():
    named = [getattr(rgaps, name) for name in rgaps.__all__]
    errors = [each for each in named if isinstance(each, type) and issubclass(each, Exception)]
    errors = [each for each in errors if not issubclass(each, Warning)]
    assert len(errors) > 20 and all(issubclass(error, rgaps.Error) for error in errors)
    assert issubclass(rgaps.TimedOut, TimeoutError) and issubclass(rgaps.BackPressured, TimeoutError)
    assert issubclass(rgaps.NotPermitted, PermissionError)
    assert issubclass(rgaps.PoolFull, MemoryError)


def test_a_pool_that_is_full(node):
    with node.publisher("t") as pub:
        with pytest.raises(rgaps.TooLarge, match="cap"):
            pub.loan(300 << 20)
        kept = pub.loan(200 << 20)
        with pytest.raises(rgaps.PoolFull, match="pool.host.cap"):
            pub.loan(100 << 20)
        kept.discard()
        with pub.loan(200 << 20) as loan:
            loan.discard()


def test_arrays_without_numbers(node):
    np = pytest.importorskip("numpy")
    with node.publisher("t") as pub:
        for array, remedy in (
            (np.array(["a", "b"]), "text.encode()"),
            (np.array([b"a", b"b"]), "array.view('uint8')"),
            (np.zeros(3, "M8[ns]"), "array.view('int64')"),
            (np.zeros(3, "m8[s]"), "array.view('int64')"),
            (np.array([1, None]), "pickle.dumps(array)"),
        ):
            with pytest.raises(TypeError, match=re.escape(remedy)):
                pub.put(array)


def test_back_pressured(node):
    with node.subscriber("t", reliable=True) as sub:
        with node.publisher("t", history=2, deadline=0.25) as pub:
            loan = None
            with pytest.raises(rgaps.BackPressured, match=rf"reliable subscriber 'test' \(process {os.getpid()}\) did not make room within 250ms") as slow:
                for number in range(10):
                    loan = pub.loan(1)
                    loan.write(bytes([number]))
                    loan.publish()
            assert slow.value.subscribers == [("test", os.getpid())] and slow.value.waited == 0.25
            # Nothing is lost: the loan can be published once there is room.
            assert loan.open and sub.recv(60).tobytes() == b"\0"
            loan.publish()
            assert [sub.recv(60).tobytes() for _ in range(2)] == [b"\1", b"\2"]


def test_a_type_that_differs_is_told_and_keeps_nobody_out(node):
    with node.publisher("t", type="image") as pub:
        with pytest.warns(rgaps.MismatchWarning, match="image.*sound|sound.*image"):
            sub = node.subscriber("t", type="sound")
        with sub, node.subscriber("t", type="image") as image:
            pub.put(b"x")
            assert image.recv(60).tobytes() == b"x"
            assert sub.try_recv() is None and sub.mismatched == pub.mismatched == 1


def test_a_demand_that_nobody_offers_is_told_and_keeps_nobody_out(node):
    demands = [({"reliable": True}, "reliable"), ({"late": "latest"}, "volatile")]
    for demand, why in demands:
        with node.subscriber("t", **demand) as sub:
            with pytest.warns(rgaps.MismatchWarning, match=why):
                pub = node.publisher("t", reliable=False, history=4)
            with pub, node.subscriber("t") as live:
                pub.put(b"x")
                assert live.recv(60).tobytes() == b"x"
                assert sub.try_recv() is None and why in sub.mismatches()[0]


def test_a_depth_that_cannot_be(node):
    for wrong in ({"depth": 0}, {"depth": 32769}):
        with pytest.raises(rgaps.InvalidArgument, match=r"^depth=\d+ is outside the limits of 1 to 32768"):
            node.subscriber("t", **wrong)
    with pytest.raises(rgaps.InvalidArgument, match="depth=1, but depth=2"):
        node.subscriber("t", keep="latest", depth=2)
    with pytest.raises(rgaps.InvalidArgument, match="not 'newest'"):
        node.subscriber("t", keep="newest")


def test_a_path_that_is_required(node):
    with rgaps.publisher("t", require="zero_copy") as pub:
        with rgaps.subscriber("t", require="tcp") as sub:
            pub.put(b"x")
            assert sub.recv(60).tobytes() == b"x"
        for slower in ("rdma", "gpudirect", "pinned", "peer"):
            rgaps.subscriber("t", require=slower).close()
    for join in (node.publisher, node.subscriber):
        with pytest.raises(rgaps.InvalidArgument, match="'warp' is not a path.*zero_copy"):
            join("t", require="warp")


def test_subscribers_that_do_not_come(node):
    with node.publisher("t") as pub:
        assert not pub.wait_for_subscribers(2, timeout=0.05)
        assert pub.missing_subscribers(2) == "topic 't' has 0 of 2 subscribers"
        with node.subscriber("t"):
            assert pub.missing_subscribers() == "topic 't' has 1 of 1 subscribers"
    with pytest.raises(rgaps.Closed):
        pub.missing_subscribers()


def test_arguments_out_of_their_limits(node):
    for wrong in (
        {"history": 0},
        {"history": 10**6},
        {"history": "many"},
        {"deadline": -1},
        {"domain": "gpu"},
        {"domain": "cuda:x"},
    ):
        with pytest.raises(rgaps.InvalidArgument):
            node.publisher("t", **wrong)
    for wrong in ({"late": "early"}, {"max_held": 0}, {"max_held": 10**6}, {"spin": -1}):
        with pytest.raises(rgaps.InvalidArgument):
            node.subscriber("t", **wrong)
    with pytest.raises(rgaps.Error):
        node.publisher("")
    with pytest.raises(rgaps.NotFound):
        node.topic("nobody's")


def test_closed_handles(node):
    pub, sub = node.publisher("t"), node.subscriber("t")
    for handle in (pub, sub):
        handle.close()
        handle.close()
        assert handle.closed
    with pytest.raises(rgaps.Closed, match="publisher"):
        pub.put(b"")
    with pytest.raises(rgaps.Closed, match="subscriber"):
        sub.recv()
    other = rgaps.Node("other")
    other.close()
    with pytest.raises(rgaps.Closed, match="node"):
        other.publisher("t")


def test_configurations(realm):
    with pytest.raises(rgaps.ConfigError, match="nowhere.toml"):
        rgaps.Node(config="nowhere.toml")
    with pytest.raises(rgaps.ConfigError, match="cap"):
        rgaps.Node(config={"pool": {"host": {"cap": "lots"}}})
    with pytest.raises(rgaps.InvalidArgument, match="key 'pool.host.cap': None is not a text"):
        rgaps.Node(config={"pool": {"host": {"cap": None}}})
    with pytest.raises(rgaps.DaemonUnavailable, match="rgaps up"):
        rgaps.Node(config={"autostart": False})
    socket = os.path.join(realm, "other")
    with rgaps.Node(socket=socket, config={"pool": {"host": {"cap": "64MiB"}}}) as node:
        with node.publisher("t"):
            assert node.pools()[0]["cap_bytes"] == 64 << 20
        assert node.status()["socket"] == socket
        node.stop_daemon()
    with open("rgaps.file", "w") as file:
        file.write('realm = "from-a-file"\n')
    with rgaps.Node(config="rgaps.file", socket=socket) as node:
        assert node.status()["realm"] == "from-a-file"
        node.stop_daemon()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"config": {"foo": 1}}, r"argument config, key 'foo': there is no key 'foo' here; the nearest is '\w+'"),
        ({"config": {"idle_exit": 1}}, r"no key 'idle_exit' here; did you mean 'idle_exit_ms'\?"),
        ({"config": {"pool": {"host": {"cop": "1GiB"}}}}, r"key 'pool.host.cop': .*did you mean 'cap'\?"),
        ({"config": {"pool.host.cop": "1GiB"}}, r"key 'pool.host.cop': .*did you mean 'cap'\?"),
        ({"config": {"limits": {"topics": 0}}}, r"key 'limits.topics': limits.topics = 0"),
        ({"config": {"autostart": "perhaps"}}, r"key 'autostart': invalid type"),
        ({"realm": "not/ok"}, r"argument realm: realm = \"not/ok\""),
    ],
)
def test_an_argument_is_blamed_by_name_and_an_unknown_key_is_refused(arguments, words):
    with pytest.raises(rgaps.ConfigError, match=words) as raised:
        rgaps.Node(**arguments)
    assert "variable" not in str(raised.value)


def test_a_variable_and_a_line_of_a_file_are_blamed_where_they_are_wrong(monkeypatch):
    with open("wrong.toml", "w") as file:
        file.write("log = 'info'\n[limits]\ntopics = 0\n")
    with pytest.raises(rgaps.ConfigError, match=r"wrong\.toml, line 3: limits\.topics = 0"):
        rgaps.Node(config="wrong.toml")
    monkeypatch.setenv("RGAPS_LIMITS__TOPICS", "0")
    with pytest.raises(rgaps.ConfigError, match="environment variable RGAPS_LIMITS__TOPICS=0"):
        rgaps.Node(config={"log": "info"})
    monkeypatch.delenv("RGAPS_LIMITS__TOPICS")


def test_a_configuration_of_lists_and_mappings(realm):
    rule = {"name": "secret", "topics": ["secret/*"], "users": ["nobody"]}
    with rgaps.Node(config={"access": [rule]}) as node:
        with pytest.raises(rgaps.NotPermitted):
            node.publisher("secret/plan")


def test_access_rules(realm):
    rules = "[[access]]\nname = 'secret'\ntopics = ['secret/*']\nusers = ['nobody']\n"
    with open("rules", "w") as file:
        file.write(rules)
    with rgaps.Node(config="rules") as node:
        with pytest.raises(rgaps.NotPermitted):
            node.publisher("secret/plan")
        with pytest.raises(PermissionError):
            node.subscriber("secret/plan")
        node.publisher("open").close()


def test_no_program_to_start(monkeypatch):
    monkeypatch.setenv("RGAPS_DAEMON", "/nonexistent/rgapsd")
    with pytest.raises(rgaps.DaemonUnavailable, match="RGAPS_DAEMON"):
        rgaps.Node()


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, caught


def test_a_misspelt_variable_is_told_with_the_one_that_was_meant(monkeypatch):
    with monkeypatch.context() as inner:
        inner.setenv("RGAPS_RELM", "lab")
        with pytest.warns(rgaps.ConfigWarning, match=r"RGAPS_RELM has no effect.*did you mean RGAPS_REALM\?") as caught:
            rgaps.Node("test").close()
    assert [each.filename for each in caught] == [__file__]


def test_settings_that_a_running_daemon_does_not_have_are_told():
    config = {"pool": {"host": {"cap": "128MiB"}}, "limits": {"topics": 50}, "log": "warn"}
    first, caught = warnings_of(lambda: rgaps.Node("first", config=config))
    assert not caught, "it starts the daemon"
    with first:
        same, caught = warnings_of(lambda: rgaps.Node("same", config=config))
        same.close()
        assert not caught, "the daemon has these values"
        other = {"pool": {"host": {"cap": "64MiB"}}, "limits": {"topics": 50}, "autostart": False}
        with pytest.warns(rgaps.ConfigWarning, match="no effect of pool.host.cap, since .*run 'rgaps down'") as caught:
            rgaps.Node("other", config=other).close()
        assert [each.filename for each in caught] == [__file__]


def test_a_warning_of_the_default_node_points_at_the_users_line(node):
    with node.publisher("t", type="image"):
        with pytest.warns(rgaps.MismatchWarning) as caught:
            rgaps.subscriber("t", type="sound").close()
        assert [each.filename for each in caught] == [__file__]


def test_a_daemon_variable_that_names_no_program_is_told_with_its_path(monkeypatch):
    with open("rgapsd", "w"):
        os.chmod("rgapsd", 0o644)
    for wrong, why in (("/nowhere/rgapsd", "does not exist"), ("/tmp", "is a folder"), ("rgapsd", "is not executable")):
        monkeypatch.setenv("RGAPS_DAEMON", wrong)
        with pytest.raises(rgaps.DaemonUnavailable, match=f"RGAPS_DAEMON names '{wrong}', which {why}"):
            rgaps.Node("test")


def test_a_time_out_says_how_long_and_which_topic_was_meant(node):
    with node.publisher("camera/left") as pub, node.subscriber("camera/lefd") as sub:
        with pytest.raises(rgaps.TimedOut, match=r"'camera/lefd' within 0.05 s; it has no publisher; did you mean 'camera/left'\?"):
            sub.recv(0.05)
        with pytest.raises(rgaps.TimedOut, match=r"within 0.02 s; it has no publisher; did you mean 'camera/left'\?"):
            asyncio.run(sub.recv_async(0.02))
        with node.subscriber("camera/left") as right:
            assert pub.wait_for_subscribers(1, timeout=60) and right.publishers == 1
            with pytest.raises(rgaps.TimedOut, match="within 0 s; nothing came from its publisher in that time"):
                right.recv(0)


def test_a_publisher_that_has_gone_and_left_history_is_no_publisher(node):
    with node.publisher("t", transient_local=True) as pub:
        pub.put(b"x")
    with node.subscriber("t", late="latest") as sub:
        assert sub.recv(60).tobytes() == b"x" and sub.publishers == 0
        with pytest.raises(rgaps.TimedOut, match="it has no publisher any more"):
            sub.recv(0.01)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"depth": -1}, rgaps.InvalidArgument, "depth=-1 is outside the limits of 1 to 32768"),
        ({"depth": 2**40}, rgaps.InvalidArgument, "depth=1099511627776 is outside the limits"),
        ({"depth": 10**80}, rgaps.InvalidArgument, r"depth=10+\.\.\. is outside the limits"),
        ({"depth": "x"}, TypeError, "depth must be a whole number from 1 to 32768, not 'x'"),
        ({"depth": True}, TypeError, "depth must be .*, not True"),
        ({"max_held": 2.5}, TypeError, "max_held must be .*, not 2.5"),
        ({"late": True}, rgaps.InvalidArgument, "late must be None, 'latest', 'all', or a number of messages, not True"),
        ({"late": -1}, rgaps.InvalidArgument, "late=-1 is outside the limits"),
    ],
)
def test_a_wrong_number_of_a_subscriber_is_named(node, wrong, error, words):
    with pytest.raises(error, match=words):
        node.subscriber("t", **wrong)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"history": "x"}, rgaps.InvalidArgument, r"history must be a number of messages from 1 to 32768, or .*, not 'x'"),
        ({"history": -1}, rgaps.InvalidArgument, "history=-1 is outside the limits of 1 to 32768"),
        ({"history": True}, rgaps.InvalidArgument, "history must be .*, not True"),
        ({"history": rgaps.KeepAll(8, -1)}, rgaps.InvalidArgument, "bytes of history=-1 is outside the limits"),
        ({"max_loans": -1}, rgaps.InvalidArgument, "max_loans=-1 is outside the limits"),
    ],
)
def test_a_wrong_number_of_a_publisher_is_named(node, wrong, error, words):
    with pytest.raises(error, match=words):
        node.publisher("t", **wrong)


def test_numbers_of_numpy_are_numbers(node):
    numpy = pytest.importorskip("numpy")
    with node.publisher("t", history=numpy.int64(4), max_loans=numpy.uint8(2)) as pub:
        with node.subscriber("t", depth=numpy.int32(1)) as sub:
            pub.put(b"x", tag=numpy.uint64(2**64 - 1))
            assert sub.recv(60).tag == 2**64 - 1


def test_wrong_arguments_of_calls_are_named(node):
    with node.publisher("t") as pub, node.subscriber("t") as sub:
        for call, error, words in (
            (lambda: pub.put(b"x", tag=-1), rgaps.InvalidArgument, "tag=-1 is outside the limits of 0 to"),
            (lambda: pub.loan(1, tag="x"), TypeError, "tag must be a whole number"),
            (lambda: pub.loan("x"), rgaps.InvalidArgument, "shape must be .*, not 'x'"),
            (lambda: pub.loan((2, -1)), rgaps.InvalidArgument, "shape: a dimension cannot have the length -1"),
            (lambda: pub.wait_for_subscribers(-1), rgaps.InvalidArgument, "n=-1 is outside"),
            (lambda: sub.listen(3), TypeError, "callback must be a function .*, not 3"),
            (lambda: sub.listen(print, on_error=3), TypeError, "on_error must be a function .*, not 3"),
        ):
            with pytest.raises(error, match=words):
                call()


def wrong_types(node, pub, sub, sample, loan):
    """Calls with an object that no argument takes, by the argument's name."""
    wrong = object()

    def keywords(call, *names):
        return [(name, lambda name=name: call(**{name: wrong})) for name in names]

    def publisher(**given):
        return node.publisher("t", **given)

    def subscriber(**given):
        return node.subscriber("t", **given)

    yield from keywords(
        publisher, "type", "dtype", "domain", "history", "reliable", "transient_local", "deadline", "loan_timeout",
        "max_loans", "require", "slow_reader",
    )
    yield from keywords(
        subscriber, "type", "dtype", "domain", "reliable", "late", "depth", "keep", "max_held", "spin", "require"
    )
    for call in (publisher, subscriber):
        yield "shape", lambda call=call: call(dtype="uint8", shape=wrong)
    for call in (node.publisher, node.subscriber, rgaps.publisher, rgaps.subscriber):
        yield from keywords(call, "topic")
    yield from keywords(rgaps.Node, "name", "config", "realm", "socket")
    yield from keywords(node.topic, "name")
    yield from keywords(node.forget_topic, "name")
    yield from keywords(pub.wait_for_subscribers, "n", "timeout")
    yield from keywords(pub.missing_subscribers, "n")
    yield from keywords(pub.trim, "keep_bytes")
    yield from keywords(pub.loan, "shape")
    for name in ("dtype", "strides", "tag", "meta", "attachment"):
        yield name, lambda name=name: pub.loan(4, **{name: wrong})
    for name in ("tag", "stream", "meta", "attachment"):
        yield name, lambda name=name: pub.put(b"x", **{name: wrong})
    for call in (sub.recv, sub.wait, sub.recv_async, sample.synchronize, rgaps.WaitSet().wait):
        yield from keywords(call, "timeout")
    for name in ("tag", "meta", "attachment"):
        yield name, lambda name=name: setattr(loan, name, wrong)
    yield "at", lambda: loan.write(b"x", at=wrong)
    yield from keywords(loan.truncate, "length")
    yield from keywords(loan.publish, "stream")
    for call in (sample.release, sample.wait_on, sample.record_stream):
        yield from keywords(call, "stream")
    yield from keywords(sample.part, "name")
    for call in (rgaps.WaitSet, rgaps.WaitSet().attach, rgaps.WaitSet().detach):
        yield "subscriber", lambda call=call: call(wrong)
    for message in (loan, sample):
        yield "the name of a part", lambda message=message: message[wrong]


def test_every_argument_of_a_wrong_type_is_named(node):
    with node.publisher("t") as pub, node.subscriber("t") as sub:
        pub.put(b"x")
        sample, loan = sub.recv(60), pub.loan(1)
        for name, call in wrong_types(node, pub, sub, sample, loan):
            with pytest.raises((TypeError, rgaps.InvalidArgument), match=rf"^{name}( must|:| of history)"):
                call()
        loan.discard()


def test_a_time_out_of_true_is_no_number(node):
    with node.subscriber("t") as sub:
        with pytest.raises(TypeError, match="timeout must be a number of seconds, or None to wait without limit, not True"):
            sub.recv(True)


def test_why_members_do_not_match_is_told_in_pythons_words(node):
    cases = (
        ({}, {"late": "latest"}, "publish with transient_local=True, or subscribe without late="),
        ({"reliable": False}, {"reliable": True}, "publish with reliable=True, or subscribe with reliable=False"),
        ({}, {"dtype": "uint8"}, r"give the publisher that type \(type=, or dtype= and shape=\), or the subscriber"),
    )
    for number, (offered, wanted, words) in enumerate(cases):
        with node.publisher(f"t{number}", **offered) as pub:
            with pytest.warns(rgaps.MismatchWarning, match=f"1 publisher of topic 't{number}' does not match.*{words}"):
                sub = node.subscriber(f"t{number}", **wanted)
            for reasons in (pub.mismatches(), sub.mismatches(), [pub.missing_subscribers()]):
                assert len(reasons) == 1 and re.search(words, reasons[0]), reasons
            with pytest.raises(rgaps.TimedOut, match=words):
                sub.recv(0)
            sub.close()
    with pytest.raises(rgaps.LimitReached, match="lower history or max_loans"):
        node.publisher("t", history=32768, max_loans=65536)


def test_an_error_of_an_earlier_version_is_told_with_its_new_name():
    with pytest.raises(AttributeError, match="rgaps.HeldBack is now rgaps.BackPressured"):
        rgaps.HeldBack
    with pytest.raises(AttributeError, match="see rgaps.MismatchWarning"):
        rgaps.QosIncompatible
    with pytest.raises(AttributeError, match="module 'rgaps' has no attribute 'Publsher'"):
        rgaps.Publsher


def test_what_no_message_can_be_made_of_is_told_with_what_to_give(node):
    image = pytest.importorskip("PIL.Image")
    with node.publisher("t") as pub:
        for wrong, words in (
            ([1, 2], r"type list: give numpy.asarray\(data, dtype=...\)"),
            ((1, 2), "type tuple: give numpy.asarray"),
            (3, "type int: give numpy.asarray"),
            (0.5, "type float: give numpy.asarray"),
            (image.new("L", (2, 2)), r"type Image: give numpy.asarray\(data\)"),
            ("x", r"text: give its bytes, text.encode\(\)"),
            (object(), "type object: give bytes, an array"),
            ({"a": [1]}, "type list: give numpy.asarray"),
        ):
            with pytest.raises(TypeError, match=words):
                pub.put(wrong)


def test_without_numpy_errors_say_what_works_without_it(program):
    without = program(
        """
        import sys
        sys.modules["numpy"] = None
        import rgaps
        with rgaps.publisher("t") as pub, rgaps.subscriber("t") as sub:
            try:
                pub.put([1, 2])
            except TypeError as error:
                print(error)
            pub.put(b"x")
            sample = sub.recv(60)
            try:
                sample.numpy()
            except ImportError as error:
                print(error)
            print(bytes(memoryview(sample)))
        """
    )
    assert "array.array('d', [...])" in without.line() and "pip install numpy" in without.line()
    assert without.finish() == "b'x'"


def test_closed_handles_say_what_to_do(node):
    pub, sub = node.publisher("t"), node.subscriber("t")
    pub.put(b"x")
    sample, loan = sub.recv(60), pub.loan(1)
    sample.release()
    loan.publish()
    pub.close()
    sub.close()
    for call, words in (
        (lambda: pub.put(b"x"), r"create another one with node.publisher\(\)"),
        (sub.recv, r"create another one with node.subscriber\(\)"),
        (sample.tobytes, "released before; read it earlier, or keep a copy"),
        (loan.numpy, r"published or discarded before; take a new one with publisher.loan\(\)"),
    ):
        with pytest.raises(rgaps.Closed, match=words):
            call()


def test_errors_speak_python(node):
    with node.subscriber("t", reliable=True, max_held=1) as sub, node.publisher("t", history=1, deadline=0) as pub:
        pub.put(b"x")
        with pytest.raises(rgaps.BackPressured, match='slow_reader="drop"'):
            pub.put(b"x")
        held = sub.recv(60)
        pub.put(b"x")
        with pytest.raises(rgaps.TooManyHeld, match=r"release some \(sample.release\(\)"):
            sub.recv(60)
        held.release()
    with node.publisher("u", max_loans=1) as pub:
        loan = pub.loan(1)
        with pytest.raises(rgaps.TooManyLoans, match="publish or discard one"):
            pub.loan(1)
        loan.discard()


def test_tracebacks_and_pickles_name_an_error_as_users_do():
    for name in rgaps.__all__:
        found = getattr(rgaps, name)
        if isinstance(found, type) and issubclass(found, Exception):
            assert found.__module__ == "rgaps", found
    error = pickle.loads(pickle.dumps(rgaps.TimedOut("late")))
    assert traceback.format_exception_only(error) == ["rgaps.TimedOut: late\n"]
