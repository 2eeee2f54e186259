//! Loss scalers compared with PyTorch's `GradScaler`.

use allfold_trainer::scaler::ScalerOptions;
use allfold_trainer::{GradScaler, Optimiser, Sgd};
use serde_json::Value;

fn scaler(kwargs: &Value, floor: f64) -> GradScaler {
    let number = |key: &str| kwargs[key].as_f64().unwrap();
    let interval = kwargs["growth_interval"].as_u64().unwrap();
    let rules =
        ScalerOptions { growth: number("growth_factor"), backoff: number("backoff_factor"), interval, floor };
    GradScaler::new(number("init_scale") as f32, rules)
}

/// A step on one parameter, 1 at first, whose gradient is 1 times `inject`.
fn step(scaler: &mut GradScaler, param: &mut f32, inject: &str) -> bool {
    let factor = match inject {
        "inf" => f32::INFINITY,
        "nan" => f32::NAN,
        _ => 1.0,
    };
    let mut grads = [scaler.scale * factor];
    let found = scaler.unscale(&mut grads);
    if !found {
        let mut params = [*param];
        Sgd::new(0.0, 0.0, false).step(0.1, &mut params, &grads);
        *param = params[0];
    }
    scaler.update(found);
    found
}

#[test]
fn agrees_with_pytorch_in_six_sequences() {
    let oracle: Value = crate::oracle::json("grad_scaler.json");
    let cases = oracle["cases"].as_array().unwrap();
    crate::oracle::counted(cases.len(), 6);
    for case in cases {
        // One of the cases reaches a scale of 0, which only a scaler without a floor can.
        let (mut scaler, mut param) = (scaler(&case["kwargs"], 0.0), 1.0);
        for (i, want) in case["steps"].as_array().unwrap().iter().enumerate() {
            let skipped = step(&mut scaler, &mut param, want["inject"].as_str().unwrap());
            let name = format!("{}, step {i}", case["name"]);
            assert_eq!(skipped, want["skipped"].as_bool().unwrap(), "{name}");
            assert_eq!(f64::from(scaler.scale), want["scale_after"].as_f64().unwrap(), "{name}");
            assert_eq!(scaler.good, want["growth_tracker"].as_u64().unwrap(), "{name}");
            match want["param"].as_f64() {
                Some(want) => assert!((f64::from(param) - want).abs() <= 2e-6, "{name}: {param}"),
                None => assert!(param.is_nan(), "{name}: {param}"),
            }
        }
    }
}

#[test]
fn a_floor_keeps_the_scale_and_the_weights() {
    let (mut scaler, mut param) =
        (GradScaler::new(1.0, ScalerOptions { interval: 2, ..ScalerOptions::default() }), 1.0);
    for _ in 0..200 {
        step(&mut scaler, &mut param, "inf");
    }
    assert_eq!((scaler.scale, param), (2f32.powi(-14), 1.0));
    step(&mut scaler, &mut param, "");
    step(&mut scaler, &mut param, "");
    assert_eq!((scaler.scale, scaler.good), (2f32.powi(-13), 0));
    assert!((param - 0.8).abs() < 1e-6);
}

/// Two optimisers with one scale: the one without overflow steps, and the scale backs off once.
#[test]
fn agrees_with_pytorch_on_two_optimisers() {
    let oracle: Value = crate::oracle::json("grad_scaler.json");
    let mut scaler = GradScaler::new(65536.0, ScalerOptions { interval: 3, ..ScalerOptions::default() });
    for want in oracle["two_optimizers"].as_array().unwrap() {
        let bad = want["bad_b"].as_bool().unwrap();
        let mut grads = [[scaler.scale], [scaler.scale * if bad { f32::INFINITY } else { 1.0 }]];
        let found = grads.each_mut().map(|grads| scaler.unscale(grads));
        assert_eq!(found, ["a_skipped", "b_skipped"].map(|key| want[key].as_bool().unwrap()));
        scaler.update(found.contains(&true));
        assert_eq!(f64::from(scaler.scale), want["scale_after"].as_f64().unwrap());
        assert_eq!(scaler.good, want["growth_tracker"].as_u64().unwrap());
    }
}
