//! `up --mps`, `env`, `run`, `status` and `doctor` with a stand-in for NVIDIA's programs.

#[path = "../../../tests/mps/fake.rs"]
mod fake_mps;
mod support;

use fake_mps::FakeMps;
use serde_json::Value;
use support::{until, Realm, Run};

struct MpsRealm {
    realm: Realm,
    fake: FakeMps,
}

impl MpsRealm {
    fn new() -> MpsRealm {
        MpsRealm {
            realm: Realm::new(),
            fake: FakeMps::new(),
        }
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let mut command = self.realm.command(arguments);
        command
            .envs(self.fake.environment())
            .env_remove("CUDA_MPS_PIPE_DIRECTORY")
            .env("RGAPS_CUDA_LIBRARY", "/there/is/none.so");
        command.output().unwrap().into()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let out = self.run(&all).ok();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }
}

fn check(doctor: &Value) -> (String, String) {
    let checks = doctor["checks"].as_array().unwrap();
    let mps = checks.iter().find(|check| check["name"] == "MPS").unwrap();
    let text = |field: &str| mps[field].as_str().unwrap_or_default().to_owned();
    (text("verdict"), text("found"))
}

#[test]
fn up_env_run_and_down() {
    let realm = MpsRealm::new();
    let up = realm.json(&["up", "--mps"]);
    assert_eq!(up["mps"]["state"], "own", "{up}");
    let pipes = up["mps"]["pipe_directory"].as_str().unwrap().to_owned();
    assert!(realm.run(&["up", "--mps"]).ok().contains(&pipes));

    let env = realm.json(&["env"]);
    assert_eq!(env["variables"]["CUDA_MPS_PIPE_DIRECTORY"], pipes.as_str());
    let lines = realm.run(&["env"]).ok();
    let expected = format!("export CUDA_MPS_PIPE_DIRECTORY='{pipes}'");
    assert!(lines.lines().any(|line| line == expected), "{lines}");
    assert!(lines.contains("export CUDA_MPS_LOG_DIRECTORY='"));

    let script = "echo \"$CUDA_MPS_PIPE_DIRECTORY $1\"; exit 37";
    let ran = realm.run(&["run", "--", "sh", "-c", script, "sh", "--json"]);
    assert_eq!((ran.code, ran.stdout), (37, format!("{pipes} --json\n")));
    let said = realm.run(&["run", "--", "/not/there"]).fails_with(1);
    assert!(said.contains("/not/there"));

    realm.fake.clients(&[999_998, 999_999]);
    let (verdict, found) = check(&realm.json(&["doctor"]));
    assert_eq!(verdict, "ok", "{found}");
    assert!(found.contains("2 clients, of at most 48"), "{found}");
    let many: Vec<u32> = (900_000..900_048).collect();
    realm.fake.clients(&many);
    assert_eq!(check(&realm.json(&["doctor"])).0, "lack");
    realm.fake.clients(&[]);
    let status = realm.json(&["status"]);
    assert_eq!(
        (&status["mps"]["state"], &status["mps"]["quarantined"]),
        (&"own".into(), &0.into())
    );
    assert!(realm.run(&["status"]).ok().contains("the daemon's own"));

    realm.run(&["down"]).ok();
    assert!(!std::path::Path::new(&pipes).join("control").exists());
    assert!(realm.fake.was_asked("quit"));
}

#[test]
fn without_mps_there_is_nothing_to_set() {
    let realm = MpsRealm::new();
    realm.run(&["env"]).fails_with(3);
    let ran = realm.run(&[
        "run",
        "--",
        "sh",
        "-c",
        "echo \"<$CUDA_MPS_PIPE_DIRECTORY>\"",
    ]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "<>\n"));
    assert!(ran.stderr.contains("rgaps up --mps"), "{}", ran.stderr);
    realm.run(&["up"]).ok();
    assert!(realm.run(&["env"]).ok().starts_with('#'));
    assert_eq!(realm.json(&["env"])["state"], "off");
    assert_eq!(realm.json(&["status"])["mps"]["state"], "off");
    let said = realm.run(&["up", "--mps"]).fails_with(1);
    assert!(said.contains("rgaps down"), "{said}");
    assert_eq!(realm.fake.starts(), 0);
}

#[test]
fn an_mps_that_does_not_start_is_said_everywhere() {
    let realm = MpsRealm::new();
    realm.fake.behave("refuse");
    let said = realm.run(&["up", "--mps"]).fails_with(1);
    assert!(said.contains("refusing to start, as told"), "{said}");
    for command in [&["env"][..], &["run", "--", "true"]] {
        assert!(
            realm.run(command).fails_with(1).contains("MPS"),
            "{command:?}"
        );
    }
    until("MPS to be given up", || {
        let warnings = realm.json(&["status"])["warnings"].to_string();
        warnings.contains("MPS is not running")
    });
    let (verdict, found) = check(&realm.json(&["doctor"]));
    assert_eq!(verdict, "lack", "{found}");
}

#[test]
fn doctor_measures_the_hand_over_without_and_under_mps() {
    let realm = MpsRealm::new();
    let doctor = || {
        let mut command = realm.realm.command(&["doctor", "--handover", "--json"]);
        command
            .envs(realm.fake.environment())
            .env_remove("CUDA_MPS_PIPE_DIRECTORY")
            .env("RGAPS_TEST_DRIVER_MEMORY_MB", "1024")
            .env("RGAPS_CUDA_LIBRARY", rgaps_test_driver::library());
        let run = Run::from(command.output().unwrap());
        serde_json::from_str::<Value>(&run.stdout)
            .unwrap_or_else(|error| panic!("{error}: {run:?}"))
    };
    let report = doctor();
    let figures = report["handovers"]
        .as_array()
        .unwrap_or_else(|| panic!("{report}"));
    let under: Vec<bool> = figures.iter().map(|f| f["mps"] == true).collect();
    assert_eq!(under, [false, true], "{report}");
    for figure in figures {
        let [p50, min, max] = ["p50_us", "min_us", "max_us"].map(|f| figure[f].as_f64().unwrap());
        assert!(0.0 < min && min <= p50 && p50 <= max, "{figure}");
    }
    // `doctor` has started an MPS of its own, and ended it.
    assert!(realm.fake.log().contains(&"quit done".to_owned()));
    assert_eq!(realm.fake.starts(), 1);

    realm.json(&["up", "--mps"]);
    doctor();
    assert_eq!(realm.fake.starts(), 2, "the realm's is used");

    realm.run(&["down"]).ok();
    realm.fake.behave("refuse");
    let report = doctor();
    assert_eq!(report["handovers"].as_array().unwrap().len(), 1);
    assert!(report.to_string().contains("did not start"), "{report}");
}
