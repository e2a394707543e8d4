use super::*;
use std::collections::BTreeMap;
use std::path::Path;

fn environment(variables: &[(&str, &str)], files: &[&Path]) -> Environment {
    Environment {
        variables: variables
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect(),
        files: files.iter().map(|path| path.to_path_buf()).collect(),
        arguments: Vec::new(),
    }
}

fn load(text: &str, environment: &Environment) -> Result<Config, String> {
    let path = file(text);
    let loaded = Config::load_from(Some(path.path()), environment);
    loaded.map_err(|error| {
        error
            .to_string()
            .replace(path.path().to_str().unwrap(), "FILE")
    })
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

const FULL: &str = r#"
realm = "lab"
socket = "/run/lab.sock"
socket_mode = "0660"
idle_exit_ms = 0
recovery_ms = 5000
log = "debug"
autostart = false

[pool.host]
cap = "8GiB"
segment = 134217728
provider = "udmabuf"
hugepages = "try"
numa_node = 1
prefault = true

[pool.cuda]
cap = "4GiB"
segment = "32MiB"
enabled = "off"
peer = "copy"
map_max = "1MiB"

[cuda]
mps = true

[limits]
clients = 100
topics = 50
connections = 7
connections_per_user = 3
lease_per_publisher = "1GiB"
device_stall_ms = 500

[[access]]
name = "camera"
topics = ["camera/**"]
users = ["alice", 1000]
groups = ["video"]
publish_users = [0]
publish_groups = []
"#;

#[test]
fn every_key_of_a_file() {
    let path = file(FULL);
    let config = Config::load_from(None, &environment(&[], &[path.path()])).unwrap();
    assert_eq!(config.file.as_deref(), Some(path.path()));
    assert_eq!(config.realm, "lab");
    assert_eq!(config.socket_path(), Path::new("/run/lab.sock"));
    assert_eq!(config.socket_mode, FileMode(0o660));
    assert_eq!(config.idle_exit(), None);
    assert_eq!(
        (config.recovery_ms, config.log.as_str(), config.autostart),
        (5000, "debug", false)
    );
    let host = HostPool {
        cap: Some(ByteSize(8 << 30)),
        segment: ByteSize(128 << 20),
        provider: HostProvider::Udmabuf,
        hugepages: HugePages::Try,
        numa_node: Some(NumaChoice::Node(1)),
        prefault: true,
    };
    assert_eq!(config.pool.host, host);
    assert_eq!(config.cuda, Cuda { mps: true });
    let cuda = CudaPool {
        cap: Some(ByteSize(4 << 30)),
        segment: ByteSize(32 << 20),
        enabled: CudaUse::Off,
        peer: PeerUse::Copy,
        map_max: ByteSize(1 << 20),
    };
    assert_eq!(config.pool.cuda, cuda);
    assert_eq!(config.limits.lease_per_publisher, Some(ByteSize(1 << 30)));
    assert_eq!(config.limits.device_stall_ms, 500);
    assert_eq!(
        config.access[0].users,
        [Principal::Name("alice".into()), Principal::Id(1000)]
    );

    // A daemon that this client starts gets the same configuration.
    let inline = config.to_inline().unwrap();
    let again = Config::load_from(
        None,
        &environment(&[(INLINE_VARIABLE, &inline), ("RGAPS_REALM", "other")], &[]),
    );
    assert_eq!(
        again.unwrap(),
        Config {
            file: None,
            ..config
        }
    );
    let default = Config::default().to_inline().unwrap();
    let again = Config::load_from(None, &environment(&[(INLINE_VARIABLE, &default)], &[]));
    assert_eq!(again.unwrap(), Config::default());
}

#[test]
fn files_in_order_and_variables_over_them() {
    let first = file("realm = \"first\"\nlog = \"warn\"\n[pool.host]\nprefault = true\n");
    let second = file("realm = \"second\"");
    let files = [Path::new("/not/there.toml"), first.path(), second.path()];
    let config = Config::load_from(None, &environment(&[], &files)).unwrap();
    assert_eq!(config.realm, "first");
    let explicit = second.path().to_str().unwrap();
    let named = environment(&[("RGAPS_CONFIG", explicit)], &files);
    assert_eq!(Config::load_from(None, &named).unwrap().realm, "second");
    assert_eq!(
        Config::load_from(Some(first.path()), &named).unwrap().realm,
        "first"
    );

    let variables = [
        ("RGAPS_REALM", "123"),
        ("RGAPS_SOCKET_MODE", "660"),
        ("RGAPS_SOCKET", "relative.sock"),
        ("RGAPS_AUTOSTART", "false"),
        ("RGAPS_POOL__HOST__CAP", "2GiB"),
        ("RGAPS_POOL__HOST__HUGEPAGES", "require"),
        ("RGAPS_LIMITS__TOPICS", "12"),
        ("RGAPS_CUDA__MPS", "true"),
        ("RGAPS_ACCESS", "[{name = \"a\", topics = [\"b\"]}]"),
        ("RGAPS_SERVICE_HOST", "10.0.0.1"),
        ("RGAPS_DAEMON", "/bin/rgapsd"),
        ("PATH", "/bin"),
    ];
    let config = Config::load_from(None, &environment(&variables, &files)).unwrap();
    assert_eq!(config.realm, "123");
    assert_eq!(config.log, "warn", "the file's, where no variable speaks");
    assert_eq!(config.socket_mode, FileMode(0o660));
    assert!(config.socket.as_ref().unwrap().is_absolute());
    assert!(!config.autostart);
    assert_eq!(config.pool.host.cap, Some(ByteSize(2 << 30)));
    assert!(config.pool.host.prefault);
    assert_eq!(config.pool.host.hugepages, HugePages::Require);
    assert_eq!(config.limits.topics, 12);
    assert!(config.cuda.mps);
    assert_eq!(config.access[0].topics, ["b"]);
    assert_eq!(config.ignored_variables, ["RGAPS_SERVICE_HOST"]);
}

#[test]
fn a_misspelt_variable_is_told_with_the_one_that_was_meant() {
    for (variable, words) in [
        ("RGAPS_RELM", "did you mean RGAPS_REALM?"),
        (
            "RGAPS_POL__HOST__CAP",
            "did you mean RGAPS_POOL__HOST__CAP?",
        ),
        ("RGAPS_DEAMON", "did you mean RGAPS_DAEMON?"),
        (
            "RGAPS_POOL_HOST_CAP",
            "as in RGAPS_POOL__HOST__CAP for pool.host.cap",
        ),
        ("RGAPS_SERVICE_HOST", "it names no key of the configuration"),
    ] {
        let environment = environment(&[(variable, "1GiB")], &[]);
        let config = Config::load_from(None, &environment).unwrap();
        let told: Vec<String> = config.warnings().collect();
        assert_eq!(told.len(), 1);
        assert!(
            told[0].contains(variable) && told[0].ends_with(words),
            "{told:?}"
        );
    }
    let debug = environment(&[("RGAPS_DEBUG", "writes")], &[]);
    assert_eq!(
        Config::load_from(None, &debug).unwrap().warnings().count(),
        0
    );
}

#[test]
fn the_keys_that_only_the_daemon_follows_are_found_in_what_a_caller_set() {
    let config = Config {
        realm: "lab".to_owned(),
        pool: Pools {
            host: HostPool {
                cap: Some(ByteSize(1 << 30)),
                ..HostPool::default()
            },
            ..Pools::default()
        },
        ..Config::default()
    };
    let keys = ["realm", "autostart", "pool.host.cap", "limits.topics"];
    let found = config.daemon_leaves(keys.into_iter());
    let found: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(found, ["limits.topics", "pool.host.cap"]);
    let (mine, other) = (config.leaves(), Config::default().leaves());
    assert_ne!(mine["pool.host.cap"], "");
    assert!(!other.contains_key("pool.host.cap"));
    assert_eq!(mine["limits.topics"], other["limits.topics"]);
}

#[test]
fn errors_name_place_and_key() {
    for (text, key) in [
        ("relm = \"x\"", "relm"),
        ("[pool.host]\ncap = \"many\"", "many"),
        ("[pool.host]\nhuge = 1", "huge"),
        ("socket_mode = 660", "octal"),
        ("socket_mode = \"999\"", "octal"),
        ("realm = \"../etc\"", "realm"),
        ("[pool.host]\nsegment = \"1MiB\"", "pool.host.segment"),
        ("[pool.cuda]\ncap = \"1KiB\"", "pool.cuda.cap"),
        ("[pool.host]\nnuma_node = \"nic\"", "links.listen"),
        ("[pool.host]\nnuma_node = \"card\"", "nic"),
        ("[limits]\ntopics = 0", "limits.topics"),
        ("[cuda]\nmps = \"maybe\"", "mps"),
        ("[limits]\nclients = 100000", "limits.clients"),
        ("[[access]]\nname = \"x\"", "topics"),
        ("[pool.host]\nhugepages = \"maybe\"", "hugepages"),
        ("[pool.host]\nprovider = \"shm\"", "udmabuf"),
        (
            "[pool.host]\nprovider = \"udmabuf\"\nhugepages = \"require\"",
            "pool.host.provider",
        ),
        ("not toml", "not toml"),
    ] {
        let path = file(text);
        let error = Config::load_from(Some(path.path()), &environment(&[], &[])).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(path.path().to_str().unwrap()), "{error}");
        assert!(error.contains(key), "{text}: {error}");
    }
    for (variable, value) in [
        ("RGAPS_POOL__HOST__CAP", "much"),
        ("RGAPS_POOL__HOTS__CAP", "1GiB"),
        ("RGAPS_POOL", "1"),
        ("RGAPS_REALM__X", "1"),
        ("RGAPS_AUTOSTART", "perhaps"),
        ("RGAPS_REALM", ""),
        ("RGAPS_RECOVERY_MS", "1000"),
    ] {
        let error = Config::load_from(None, &environment(&[(variable, value)], &[])).unwrap_err();
        assert!(error.to_string().contains(variable), "{error}");
    }
    let error =
        Config::load_from(Some(Path::new("/not/there.toml")), &environment(&[], &[])).unwrap_err();
    assert!(error.to_string().contains("/not/there.toml"), "{error}");
}

#[test]
fn a_pool_fits_the_table_of_segments() {
    let host = |cap: u64| HostPool {
        cap: Some(ByteSize(cap)),
        ..HostPool::default()
    };
    assert_eq!(host(1 << 30).segment_bytes(), 64 << 20);
    let large = host(MAX_POOL_BYTES);
    assert!(large.segment_bytes() * MAX_SEGMENTS as u64 >= large.cap_bytes());
    assert_eq!(large.segment_bytes() % SEGMENT_UNIT_BYTES, 0);
    assert_eq!(host((1 << 30) + 5).cap_bytes(), 1 << 30);
    let by_default = HostPool::default().cap_bytes();
    assert!(by_default >= SEGMENT_UNIT_BYTES && by_default % SEGMENT_UNIT_BYTES == 0);
}

#[test]
fn the_list_of_keys_is_complete() {
    let all = Config {
        socket: Some("/x".into()),
        ..Config::default()
    };
    let table: BTreeMap<String, toml::Value> = toml::from_str(&all.to_inline().unwrap()).unwrap();
    for key in table.keys() {
        let variable = format!("RGAPS_{}__NO_SUCH_KEY", key.to_uppercase());
        let error = Config::load_from(None, &environment(&[(&variable, "1")], &[]));
        assert!(
            error.is_err(),
            "{key} is not known as a key of the environment"
        );
    }
}

#[test]
fn an_error_names_the_file_and_its_line() {
    for (text, told) in [
        ("log = \"info\"\nrelm = \"x\"", "FILE, line 2 ('relm = \"x\"'): there is no key 'relm' here; did you mean 'realm'?"),
        ("\n\n[pool.host]\nhugepage = \"off\"", "FILE, line 4 ('hugepage = \"off\"'): there is no key 'hugepage' here; did you mean 'hugepages'?"),
        ("\nthis is not TOML", "FILE, line 2 ('this is not TOML'): "),
        ("log = \"info\"\n\n[limits]\n# few\ntopics = 0", "FILE, line 5: limits.topics = 0: it must be"),
        ("[pool.host]\nsegment = \"1MiB\"", "FILE, line 2: pool.host.segment = 1MiB: "),
    ] {
        let error = load(text, &environment(&[], &[])).unwrap_err();
        assert!(error.starts_with(told), "{text}: {error}");
    }
}

#[test]
fn an_argument_is_blamed_by_its_own_name_and_goes_over_variables() {
    let variables = [
        ("RGAPS_REALM", "from-variable"),
        ("RGAPS_LIMITS__TOPICS", "7"),
    ];
    let with = |name: &str, key: &str, value: toml::Value| {
        let mut environment = environment(&variables, &[]);
        environment.arguments.push(Argument {
            name: name.to_owned(),
            key: key.to_owned(),
            value,
        });
        Config::load_from(None, &environment)
    };
    let config = with("--realm", "realm", "lab".into()).unwrap();
    assert_eq!((config.realm.as_str(), config.limits.topics), ("lab", 7));
    let config = with("config", "pool.host.cap", "2GiB".into()).unwrap();
    assert_eq!(config.pool.host.cap, Some(ByteSize(2 << 30)));
    for (key, value, told) in [
        ("realm", "not/ok".into(), "--option: realm = \"not/ok\": "),
        (
            "foo",
            1.into(),
            "--option: there is no key 'foo' here; the nearest is '",
        ),
        (
            "idle_exit",
            1.into(),
            "--option: there is no key 'idle_exit' here; did you mean 'idle_exit_ms'?",
        ),
        (
            "pool.host.cop",
            "1GiB".into(),
            "--option: there is no key 'cop' here; did you mean 'cap'?",
        ),
        ("limits.topics", 0.into(), "--option: limits.topics = 0: "),
        (
            "limits.topics",
            "many".into(),
            "--option: invalid type: string \"many\", expected a whole number from 0 to 4294967295",
        ),
        (
            "autostart",
            "perhaps".into(),
            "--option: invalid type: string \"perhaps\", expected true or false",
        ),
        (
            "links.connect",
            "tcp/10.0.0.2:7447".into(),
            "--option: invalid type: string \"tcp/10.0.0.2:7447\", expected a list",
        ),
    ] {
        let error = with("--option", key, value).unwrap_err().to_string();
        assert!(error.starts_with(told), "{key}: {error}");
        assert!(!error.contains("environment variable"), "{error}");
    }
}

#[test]
fn the_address_of_a_daemon_is_known_under_an_invalid_configuration() {
    let address = |text: &str, environment: &Environment| {
        let path = file(text);
        assert!(
            Config::load_from(Some(path.path()), environment).is_err(),
            "{text}"
        );
        Config::load_address(Some(path.path()), environment)
            .map(|config| (config.realm, config.socket))
    };
    let none = environment(&[], &[]);
    let lab = |socket: Option<&str>| ("lab".to_owned(), socket.map(PathBuf::from));
    let wrong = "realm = \"lab\"\nsocket = \"/x/y.sock\"\n[limits]\ntopics = 0\n";
    assert_eq!(address(wrong, &none).unwrap(), lab(Some("/x/y.sock")));
    assert_eq!(
        address("realm = \"lab\"\nfoo = 1", &none).unwrap(),
        lab(None)
    );
    let variable = environment(
        &[("RGAPS_REALM", "lab"), ("RGAPS_POOL__HOST__CAP", "much")],
        &[],
    );
    assert_eq!(address("foo = 1", &variable).unwrap(), lab(None));
    // The unreadable line may have named any realm.
    let error = address("realm = \"lab", &none).unwrap_err();
    assert!(error.to_string().contains("line 1"), "{error}");
    assert_eq!(address("realm = \"other", &variable).unwrap(), lab(None));
}

#[test]
fn what_must_be_set_together_may_be_set_by_several() {
    let all = [
        ("RGAPS_LINKS__ENABLED", "true"),
        ("RGAPS_LINKS__LISTEN", "127.0.0.1:0"),
        ("RGAPS_LINKS__SCOUTING", "true"),
    ];
    let config = Config::load_from(None, &environment(&all, &[])).unwrap();
    assert!(config.links.enabled);
    let variable = environment(&all[1..], &[]);
    let text = "log = \"info\"\n[links]\nenabled = true\n";
    assert!(load(text, &variable).unwrap().links.enabled);
    let error = load(text, &environment(&[], &[])).unwrap_err();
    assert!(error.starts_with("FILE, line 2: links.listen"), "{error}");
    let error = Config::load_from(None, &environment(&all[..1], &[])).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("environment variable RGAPS_LINKS__ENABLED=true: "),
        "{error}"
    );
}
