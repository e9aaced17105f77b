"""The composition root: the only module that knows all parts. It puts a broker together from them."""

from __future__ import annotations

import gc
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio

from krappy import descriptors, endings, extras
from krappy.addresses import EVERYWHERE, bound_address, reached, written
from krappy.broker.broker import LocalBroker as Engine
from krappy.broker.clock import Clock
from krappy.cluster.inter_broker import InterBroker, PeerLogin
from krappy.cluster.lookout import Lookout
from krappy.errors import KrappyError, ShuttingDown, StorageError, Unavailable
from krappy.handlers import kafka, native
from krappy.memory import keep_freed_memory
from krappy.ports.tokens import TokensPort
from krappy.ports.users import UsersPort
from krappy.server import http
from krappy.server.authentication import Admission, Authenticator
from krappy.server.connection import Native
from krappy.server.kafka import Advertised, Kafka
from krappy.server.places import HEALTH, Places
from krappy.server.server import Listener, Server, bind
from krappy.server.tls import ServerTls, to_zookeeper
from krappy.settings import server as settings
from krappy.settings import zookeeper
from krappy.settings.inter_broker import read_password, read_token
from krappy.settings.listeners import HTTP, NATIVE, PLAINTEXT, ListenerSetting, parse_address
from krappy.settings.server import ServerConfig
from krappy.settings.topic_table import inherited
from krappy.trimming import give_back

if TYPE_CHECKING:
    from krappy.clients.gateway import Gateway
    from krappy.cluster.zk.client import ZooKeeper
    from krappy.console.history import FigureHistory
    from krappy.server.oidc import ProviderLogin
    from krappy.server.tokens import Tokens

Report = Callable[..., None]
KAFKA = "kafka "  # prefix of a Kafka listener's name, among the sockets
OTHERS = {NATIVE: "native", HTTP: "http"}  # listeners that are not Kafka's, and their names among the sockets
LISTENERS = ("listen_native", "listen_kafka", "listen_http")
# gc.set_threshold. A large request, or thousands of new connections, make many objects that stay for a while: the
# collector must not look at too many of them at once. 25,000 take some 3 ms, and 100,000 some 30 ms.
COLLECTOR = (5_000, 5, 200)


def _quiet(event: str, **facts: Any) -> None:
    """The default report of an embedded broker: does nothing."""


class Broker:
    """A broker inside a program: `async with krappy.Broker(data_dir) as broker: … broker.address`.

    Args:
        data_dir: the folder that holds everything it stores; created if missing.
        listen_native, listen_kafka: HOST:PORT, or "none"; port 0 (the default here) takes a free one. Kafka's protocol
            can have several listeners: "NAME://HOST:PORT,NAME://HOST:PORT".
        listen_http: the same for the console, which needs the extra `console`; "none" here by default.
        report: called with (event, **facts) for each event that `krappy serve` would log.
        others: any setting of the broker, by its name in `krappy serve --help`, with _ for -.

    Raises ConfigError for a wrong setting; Unavailable for a port that is taken, or without trio; StorageError when
    another broker holds the folder; ShuttingDown when `begin_stop` was called before the broker had started.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        listen_native: str | None = "127.0.0.1:0",
        listen_kafka: str | None = "127.0.0.1:0",
        listen_http: str | None = "none",
        report: Report = _quiet,
        **others: Any,
    ) -> None:
        listen = {"listen_native": listen_native, "listen_kafka": listen_kafka, "listen_http": listen_http}
        self.config = settings.load({"data": Path(data_dir).absolute(), **listen, **others}, {})
        extras.check(self.config)
        self._report = report
        self._stack = AsyncExitStack()
        self.engine: Engine
        self.server: Server
        self.tls: ServerTls | None = None  # if a listener has it
        self.tokens: Tokens | None = None  # if users log in with them
        self.provider_login: ProviderLogin | None = None  # by which browsers log in
        self.authenticator: Authenticator
        self.secret = os.urandom(32)  # the key of the console's sessions
        self.history: FigureHistory  # if there is a console
        self.lookout: Lookout
        self._gateway: Gateway | None = None
        self.native_address = ""
        self.kafka_addresses: dict[str, str] = {}  # HOST:PORT of each listener of Kafka's protocol, by its name
        self.http_address = ""  # HOST:PORT of the console and its HTTP API
        self.health_address = ""  # HOST:PORT of the probes, if they have a listener of their own
        self.listening = False  # every listener is open
        self._stopped = False

    @property
    def kafka_address(self) -> str:
        """HOST:PORT of Kafka's protocol, for bootstrap.servers: of the first listener, when there are several."""
        return next(iter(self.kafka_addresses.values()), "")

    @property
    def address(self) -> str:
        """HOST:PORT of the native protocol, for `krappy.connect`."""
        return self.native_address

    async def __aenter__(self) -> Broker:
        if not trio.lowlevel.in_trio_run():
            raise Unavailable(
                "krappy.Broker runs under trio; elsewhere krappy.testing.running.run_broker gives it a thread, or "
                "`krappy serve` a process"
            )
        await self._stack.__aenter__()
        try:
            nursery = await self._stack.enter_async_context(trio.open_nursery())
            self._stack.push_async_callback(self._stop, nursery)
            await self._start(nursery)
        except BaseException as error:
            try:
                await self._stack.__aexit__(type(error), error, error.__traceback__)
            except BaseExceptionGroup as group:  # the nursery wraps the error that kept the broker from starting
                await trio.lowlevel.checkpoint_if_cancelled()
                raise first_error(group) from None
            raise first_error(error) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # The nursery wraps what the body raised, but the program should get its own error unchanged.
            if error is not None and group.exceptions == (error,):
                raise error from error.__cause__
            raise

    async def _start(self, nursery: trio.Nursery) -> None:
        config = self.config
        sockets: dict[str, socket.socket] = {}
        try:
            if config.needs_tokens:
                self._check_by_provider(nursery)
            self.authenticator = Authenticator(
                lambda: self.engine.users, lambda: self.engine.audit, config, self._report, self.tokens
            )
            if any(each.has_tls for each in config.listeners):
                self.tls = ServerTls(config, self._report)
            for name, key in OTHERS.items():
                if (served := config.listener(name)) is not None:
                    sockets[key] = bind(served.address, f"listen_{key}")
            for listener in config.kafka_listeners:
                sockets[KAFKA + listener.name] = bind(listener.address, "listen_kafka")
            if config.listen_health:
                sockets[HEALTH] = bind(config.listen_health, "listen_health")
            self.engine = self._make_engine()
            self.engine.endpoints = self._endpoints(sockets)
            if self._stopped:
                self.engine.begin_stop()
            self.server = self._make_server()
            self.server.tls, self.server.tokens = self.tls, self.tokens
            self.lookout = self._make_lookout()
            await nursery.start(self._serve, [])
            if self.tls is not None:
                nursery.start_soon(self.tls.watch)
            if HEALTH in sockets:  # opened first: probes tell how far the start is
                self.health_address = bound_address(sockets[HEALTH])
                self.server.listen(Listener(sockets.pop(HEALTH), http.Http(self._load_probes, HEALTH)))
            if "http" in sockets:  # likewise
                from krappy.console.history import FigureHistory  # not the whole console: that takes more memory

                self.history = FigureHistory()
                self.http_address = self.engine.http_address = bound_address(sockets["http"])
                console = http.Http(self._load_console)
                self.server.listen(Listener(sockets.pop("http"), console, self._tls_of(config.listener(HTTP))))
            await nursery.start(self.engine.run)
            if self.http_address:
                self.engine.spawn(self.history.record, self.engine, self.server)
            self.lookout.begin(self.engine.store)
            has_users = any(each.has_users for each in config.listeners)
            if has_users and self.tokens is None and not self.engine.users.all:
                self._report("no_users", text="nobody can log in: `krappy user add NAME --data DIR`, or users_dir")
            self.engine.dynamic.changed.subscribe(self._take_settings)
            self._take_settings()
        except BaseException:
            for each in sockets.values():
                each.close()
            raise
        if "native" in sockets:
            self.native_address = bound_address(sockets["native"])
            told = config.listener(NATIVE)
            assert told is not None
            speech = Native(native.registry(), told.advertised, self._admission(told))
            self.server.listen(Listener(sockets["native"], speech, self._tls_of(told)))
        clustered = config.zookeeper_connect and len(config.kafka_listeners) > 1
        for_brokers = config.inter_broker_listener if clustered else None
        for listener in config.kafka_listeners:
            opened = sockets[KAFKA + listener.name]
            self.kafka_addresses[listener.name] = bound_address(opened)
            advertised = Advertised(listener.name, config.broker_id, listener.advertised, config.rack or None)
            spoken = Kafka(kafka.registry(), advertised, self._admission(listener))
            self.server.listen(Listener(opened, spoken, self._tls_of(listener), listener == for_brokers))
        self.listening = True

    def _check_by_provider(self, nursery: trio.Nursery) -> None:
        """Raises ConfigError."""
        # Imported here, because they need PyJWT, which few brokers have.
        from krappy.server.oidc import ProviderLogin, read_secret_file
        from krappy.server.tokens import Tokens

        self.tokens = Tokens(self.config, self._report)
        if self.config.console_oidc_client_id:
            if self.config.console_oidc_secret_file:
                read_secret_file(self.config.console_oidc_secret_file)
            self.provider_login = ProviderLogin(self.tokens, self.config)
        nursery.start_soon(self.tokens.follow)

    def _admission(self, listener: ListenerSetting) -> Admission:
        authenticator = self.authenticator if listener.has_users else None
        return Admission(listener.name, authenticator, None if self.tls is None else self.tls.rules)

    def _tls_of(self, listener: ListenerSetting | None) -> Callable[[], ssl.SSLContext] | None:
        if self.tls is None or listener is None or not listener.has_tls:
            return None
        return self.tls.for_browsers if listener.name == HTTP else self.tls.for_clients

    def _make_engine(self) -> Engine:
        config = self.config
        if not config.zookeeper_connect:
            return Engine(config, self._report)
        from krappy.cluster.controller import ControllerSettings
        from krappy.cluster.fetcher import Fetcher, FetchSettings, silence_s
        from krappy.cluster.log_peers import LogPeers
        from krappy.cluster.membership import ClusterMembership

        connect = zookeeper_client(
            config,
            lambda text: self._report("zookeeper_unusable", error=text),
            lambda took_ms: self._report("zookeeper_slow", servers=config.zookeeper_connect, took_ms=took_ms),
        )
        settings = ControllerSettings(
            config.auto_leader_rebalance_enable,
            config.leader_imbalance_check_interval_seconds,
            config.leader_imbalance_per_broker_percentage,
            inherited(config.topic_defaults),
        )
        about = (config.broker_id, config.rack or None, self._report, Clock().now_ms)
        cluster = ClusterMembership(connect, *about, settings)
        way = self._inter_broker()
        fetcher = Fetcher(
            *(config.broker_id, way, lambda: cluster.image, lambda: cluster.epoch),
            settings=FetchSettings(silence_s=silence_s(config.replica_lag_time_max_ms)),
            largest_batch=config.max_frame_bytes,
            report=self._report,
        )
        peers = LogPeers(lambda: cluster.image, way, config.max_frame_bytes)
        return Engine(config, self._report, cluster, fetcher, peers)

    def _inter_broker(self) -> InterBroker:
        config, listener, login = self.config, self.config.inter_broker_listener, None
        if listener.has_users:
            secret = partial(read_token if config.inter_broker_token_file else read_password, config)
            login = PeerLogin(config.sasl_mechanism_inter_broker_protocol, config.inter_broker_user, secret)
        return InterBroker(listener.name, self._tls_to_brokers if listener.has_tls else None, login)

    def _tls_to_brokers(self) -> ssl.SSLContext:
        assert self.tls is not None
        return self.tls.for_brokers()

    @property
    def gateway(self) -> Gateway | None:
        """The console's gateway to the partitions that other brokers of the cluster lead. It is made when it is first
        asked for. None: this broker is alone, or its native listener is not open."""
        told = self.config.listener(NATIVE)
        if self._gateway is None and told is not None and self.native_address and self.engine.replication is not None:
            self._gateway = self._make_gateway(told)
            self.engine.spawn(self._gateway.run)
        return self._gateway

    def _make_gateway(self, told: ListenerSetting) -> Gateway:
        """It logs in to native listeners as this broker logs in to the Kafka listeners of others. Where this broker has
        no login or certificate for that, the environment counts, as for any client."""
        from krappy.clients.gateway import Gateway
        from krappy.clients.security import CA, CERT, TLS, SecurityOptions

        config, address, security = self.config, reached(self.native_address), SecurityOptions()
        if told.has_tls:
            address = written(*self.engine.endpoints[NATIVE])  # which the certificate is for
            if not {TLS, CA, CERT} & os.environ.keys():
                security["tls"] = self._tls_to_brokers
        if told.has_users and config.inter_broker_token_file:
            security["token"] = partial(read_token, config)
        elif told.has_users and config.inter_broker_user:
            security["user"], security["password"] = config.inter_broker_user, partial(read_password, config)
        return Gateway(address, **security)

    def _endpoints(self, sockets: dict[str, socket.socket]) -> dict[str, tuple[str, int]]:
        """What the cluster is told of each listener by its name: the advertised host and port, else those that it is
        bound to. For one that is bound to all addresses, the host is that which another listener advertises, else this
        machine's name."""
        config = self.config
        told = {each.name: (each.advertised, sockets[KAFKA + each.name]) for each in config.kafka_listeners}
        for name, key in OTHERS.items():
            if (other := config.listener(name)) is not None:
                told[name] = other.advertised, sockets[key]
        hosts = [parse_address(advertised)[0] for advertised, _ in told.values() if advertised]
        found = {}
        for name, (advertised, sock) in told.items():
            host, port = parse_address(advertised or bound_address(sock))
            found[name] = (hosts[0] if hosts else socket.gethostname()) if host in EVERYWHERE else host, port
        return found

    def _make_server(self) -> Server:
        config = self.config
        return Server(
            self.engine,
            self._report,
            memory_bytes=config.memory_bytes,
            max_frame=config.max_frame_bytes,
            places=Places(
                config.max_connections, config.max_connections_per_ip, config.overrides_of_connections_per_ip
            ),
            idle_seconds=config.idle_timeout_ms / 1000 if config.idle_timeout_ms else float("inf"),
        )

    @property
    def console_users(self) -> Callable[[], UsersPort] | None:
        """The users who log in to the console, once the store is open; None: the console has no users."""
        listener = self.config.listener(HTTP)
        return (lambda: self.engine.users) if listener is not None and listener.has_users else None

    @property
    def console_tokens(self) -> TokensPort | None:
        """The tokens that the console takes; None: it takes none."""
        return self.tokens if self.config.takes_tokens and self.console_users is not None else None

    def _make_lookout(self) -> Lookout:
        engine = self.engine
        way = self._inter_broker() if engine.replication is not None else InterBroker()
        return Lookout(engine.id, way, lambda at: engine.topic(at.topic).led(at.partition), engine.now_ms)

    def _load_probes(self) -> http.Application:
        from krappy.console.health import Probes

        return Probes(self.engine, lambda: self.listening)

    def _load_console(self) -> http.Application:
        from krappy.console.app import application

        if self.engine.replication is not None:
            from krappy.clients.gateway import Gateway  # noqa: F401 - in this thread: it loads all of a client
        return application(self.engine, self.server, self)

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT by listener: "native", "http", "health", "kafka" (the first one) and "kafka NAME" for each named
        one."""
        named = {f"kafka {name}": address for name, address in self.kafka_addresses.items() if name != PLAINTEXT}
        known = {"native": self.native_address, "kafka": self.kafka_address, "http": self.http_address, **named}
        known["health"] = self.health_address
        return {name: address for name, address in known.items() if address}

    def _take_settings(self) -> None:
        """Tells the server the settings that may change while it runs."""
        config, places = self.engine.config, self.server.places
        places.most, places.most_of_one = config.max_connections, config.max_connections_per_ip

    async def _serve(self, listeners: list[Listener], *, task_status: trio.TaskStatus[None]) -> None:
        await self.server.serve(listeners, task_status=task_status)

    def begin_stop(self) -> None:
        """Takes no new requests from now on. If the broker is still starting, the start ends with ShuttingDown as soon
        as it can; the next start does the rest of recovery. In a cluster it serves until others have taken over."""
        self._stopped = True
        if hasattr(self, "engine") and not (self.listening and self.engine.replication is not None):
            self.engine.begin_stop()

    async def _stop(self, nursery: trio.Nursery) -> None:
        """Stops gracefully: answers the requests in flight, ends connections, then closes the files cleanly."""
        with trio.CancelScope(shield=True):
            if hasattr(self, "server"):
                if self.listening:
                    await self.engine.leave()
                self.engine.begin_stop()
                self.server.stop_accepting()
                await self.server.finish()
        nursery.cancel_scope.cancel()


def zookeeper_client(
    config: ServerConfig, troubled: Callable[[str], None], slow: Callable[[int], None] = lambda took_ms: None
) -> Callable[..., ZooKeeper]:
    """Makes a client of the cluster's ZooKeeper, as the settings say. `troubled`, `slow`: as `ZooKeeper` has them.
    Raises ConfigError."""
    from krappy.cluster.zk.client import ZooKeeper

    servers, chroot = config.zookeeper
    return partial(
        ZooKeeper,
        servers,
        chroot=chroot,
        timeout_ms=config.zookeeper_session_timeout_ms,
        auth=zookeeper.read_login(config),
        protected=config.zookeeper_set_acl,
        **to_zookeeper(config),
        troubled=troubled,
        slow=slow,
    )


async def serve(config: ServerConfig, *, report: Report, ready: Callable[[Broker], None] | None = None) -> None:
    """Runs a broker until SIGTERM, SIGINT, or SIGHUP unless that is ignored (nohup).

    `ready` is called once the broker takes requests. Raises what `Broker` raises, but returns when a signal ended the
    start.
    """
    descriptors.raise_limit()
    keep_freed_memory()
    # The garbage collector does not need to look at objects that live as long as the broker.
    gc.freeze()
    gc.set_threshold(*COLLECTOR)
    sys.setswitchinterval(0.001)  # a commit's thread soon runs again after its fdatasync
    apart = ("data", *LISTENERS)
    given = {name: value for name, value in config.flat().items() if name not in apart}
    listen = {name: getattr(config, name) or "none" for name in LISTENERS}
    broker = Broker(config.data, report=report, **listen, **given)
    told = trio.Event()

    async def wait_for_signals(signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if not told.is_set():  # a second one changes nothing
                broker.begin_stop()
                report("broker_stopping", signal=signal.Signals(number).name)
                endings.bound_stop(report)
                told.set()

    async def run() -> None:
        async with broker:
            room = broker.engine.room
            room.abort = partial(endings.end_at_once, report)
            gc.freeze()  # recovered objects live as long: with 10,000 topics, looking at them takes 0.3 s
            report(
                "broker_ready",
                address=broker.address,
                kafka=broker.kafka_address,
                http=broker.http_address,
                data=str(config.data),
                durability=config.durability,
            )
            if ready is not None:
                ready(broker)
            broker.engine.spawn(give_back, broker.engine.machine.resident_bytes)
            await told.wait()
            with suppress(StorageError):
                await room.look()  # closing writes files by their paths, so the data folder must be the right one

    stops = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        stops.append(signal.SIGHUP)
    with trio.open_signal_receiver(*stops) as signals:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_signals, signals)
                await run()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = first_error(group)
            if not (told.is_set() and isinstance(error, ShuttingDown)):  # a signal that came during recovery
                raise error from None
    report("broker_stopped")


def first_error(group: BaseException) -> BaseException:
    """The first KrappyError within an exception group, or else its first error."""
    while isinstance(group, BaseExceptionGroup):
        group = next(
            (e for e in group.exceptions if isinstance(e, KrappyError | BaseExceptionGroup)), group.exceptions[0]
        )
    return group
