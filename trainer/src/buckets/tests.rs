use super::*;
use crate::layers::Init;
use serde_json::Value;

fn places(bytes: &[u64]) -> Vec<ParamSpec> {
    let mut end = 0;
    let place = |&bytes: &u64| {
        let range = end..end + bytes as usize / 4;
        end = range.end;
        ParamSpec { name: String::new(), shape: vec![range.len()], range, init: Init::Constant(0.0) }
    };
    bytes.iter().map(place).collect()
}

#[test]
fn agrees_with_pytorch_on_three_models_and_three_caps() {
    let oracle: Value = crate::oracle::json("ddp_buckets.json");
    for model in ["mlp784", "resnet18", "gpt"] {
        let bytes: Vec<u64> =
            serde_json::from_value(oracle["buckets"][format!("{model}_cap25MiB")]["param_bytes"].clone())
                .unwrap();
        for cap in [1, 5, 25] {
            let case = &oracle["buckets"][format!("{model}_cap{cap}MiB")];
            let want: Vec<Vec<usize>> =
                serde_json::from_value(case["buckets_over_reversed_params"].clone()).unwrap();
            let mine = buckets(&places(&bytes), 4, Caps { first: 1 << 20, rest: cap << 20 });
            let mine: Vec<Vec<usize>> = mine
                .iter()
                .map(|bucket| bucket.params.iter().map(|p| bytes.len() - 1 - p).collect())
                .collect();
            assert_eq!(mine, want, "{model}, {cap} MiB");
        }
    }
}

#[test]
fn cap_zero_gives_every_parameter_its_own_bucket() {
    let all = buckets(&places(&[8, 4, 12]), 4, Caps { first: 0, rest: 0 });
    assert_eq!(
        all.iter().map(|b| (b.params.clone(), b.elements)).collect::<Vec<_>>(),
        [(vec![2], 3), (vec![1], 1), (vec![0], 2)]
    );
    assert!(buckets(&[], 4, Caps { first: 0, rest: 0 }).is_empty());
}

#[test]
fn buckets_are_views_where_their_elements_lie_side_by_side_from_the_end_on() {
    let params = places(&[8, 4, 12, 4]);
    let caps = Caps { first: 8, rest: 8 };
    let of = |order: &[usize]| views(&buckets_in(order, &params, 4, caps), &params);
    assert_eq!(of(&[3, 2, 1, 0]), Some(vec![3..7, 0..3]));
    assert_eq!(of(&[2, 3, 1, 0]), None, "the first is not at the end");
    assert_eq!(of(&[3, 1, 2, 0]), None, "an element of another bucket lies between");
    assert_eq!(of(&[2, 1, 0]), None, "a frozen one at the end");
    assert_eq!(of(&[3, 2, 1]), Some(vec![3..7, 2..3]), "a frozen one before all");
    assert_eq!(of(&[]), Some(vec![]));
}

#[test]
fn groups_have_their_own_buckets_in_the_order_in_which_they_fill() {
    let mut params = places(&[8, 4, 12, 4]);
    for (place, name) in params.iter_mut().zip(["a.w", "b.w", "a.b", "b.b"]) {
        place.name = name.into();
    }
    let caps = Caps { first: 1 << 20, rest: 1 << 20 };
    let all = grouped(&[3, 2, 1, 0], &params, (4, caps), &["a.".into()]);
    assert_eq!(all.iter().map(|b| b.params.clone()).collect::<Vec<_>>(), [vec![3, 1], vec![2, 0]]);
}
