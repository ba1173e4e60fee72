//! Tests of graphs while they are built: checks of operands, nodes that are added once, last uses.
//!
//! The error of operands that do not fit names their shapes and types and what the operation expects.

use numbers::FloatType;

use super::*;

fn weight(graph: &mut Graph, shape: &[usize]) -> Value {
    let spec = WeightSpec {
        name: format!("weight {shape:?}"),
        shape: shape.to_vec(),
        dtype: FloatType::Bf16,
        partition: Partition::Replicated,
        num_ranks: 1,
        num_copies: 1,
        source: Source::Whole,
        rounding: None,
    };
    graph.weight(&spec)
}

fn hidden(graph: &mut Graph, size: usize) -> Value {
    graph.argument(0, Shape::new([Dim::Tokens, Dim::Fixed(size)]), DType::F32)
}

#[test]
fn a_linear_layer_checks_its_sizes() {
    let mut graph = Graph::default();
    let x = hidden(&mut graph, 64);
    let fitting = weight(&mut graph, &[128, 64]);
    let y = graph.linear(x, fitting, None).unwrap();
    assert_eq!(graph.node(y).shape.to_string(), "[tokens, 128]");
    let other = weight(&mut graph, &[128, 32]);
    let error = graph.linear(x, other, None).unwrap_err().to_string();
    insta::assert_snapshot!(
        error,
        @"linear of [tokens, 64] float32, [128, 32] bfloat16: expected [n, in], [out, in] and maybe [out], floats"
    );
    let bias = weight(&mut graph, &[64]);
    assert!(graph.linear(x, fitting, Some(bias)).is_err());
}

#[test]
fn attention_checks_its_heads() {
    let mut graph = Graph::default();
    let x = hidden(&mut graph, 96);
    let spec = |graph: &mut Graph, shape: &[usize]| {
        let [keys, values] = ["keys", "values"].map(|name| {
            let name = format!("{name} of {shape:?}");
            let spec =
                StateSpec { name, extent: Extent::Token, shape: shape.to_vec(), numbers: Numbers::Cache, window: None };
            graph.state(&spec)
        });
        AttentionSpec { keys, values: values.into(), scale: 1.0, window: None, soft_cap: None, slopes: None }
    };
    let q = graph.reshape(x, &[6, 16]).unwrap();
    let three = graph.reshape(x, &[3, 32]).unwrap();
    let [six_heads, three_heads] = [[6, 16], [3, 32]].map(|shape| spec(&mut graph, &shape));
    assert!(graph.paged_attention([q, q, q], None, six_heads).is_ok());
    assert!(graph.paged_attention([q, q, q], None, three_heads).is_err());
    assert!(graph.paged_attention([q, three, three], None, three_heads).is_err());
    assert!(graph.reshape(x, &[5, 16]).is_err());
    let [fitting, other] = [6, 3].map(|heads| weight(&mut graph, &[heads]));
    let attended = graph.paged_attention([q, q, q], Some(fitting), six_heads).unwrap();
    assert_eq!(graph.node(attended).operands, [q, q, q, fitting]);
    let error = graph.paged_attention([q, q, q], Some(other), six_heads).unwrap_err().to_string();
    assert!(error.contains("[3] bfloat16") && error.contains("and maybe sinks [heads]"), "{error}");
}

#[test]
fn experts_check_their_biases() {
    let mut graph = Graph::default();
    let x = hidden(&mut graph, 4);
    let mixture = graph.argument(1, Shape::new([Dim::Tokens, Dim::Fixed(3)]), DType::F32);
    let [inward, outward] = [[3, 6, 4], [3, 4, 6]].map(|shape| weight(&mut graph, &shape));
    let [wide, narrow] = [6, 4].map(|len| weight(&mut graph, &[3, len]));
    let matrices = [inward, inward, outward];
    let gating = Gating { activation: Activation::QuickGelu, clamp: Some(Clamp { limit: 7.0, offset: 1.0 }) };
    let spec = ExpertsSpec { num_chosen: 2, gating, weighted: Weighted::Output };
    let made = graph.experts([x, mixture], matrices, Some([wide, wide, narrow]), spec).unwrap();
    let printed = graph.node(made).to_string();
    let expected = "experts %0, %1, %2, %2, %3, %4, %4, %5 chosen=2 QuickGelu limit=7 offset=1 : [tokens, 4] float32";
    assert_eq!(printed, expected);
    let error = graph.experts([x, mixture], matrices, Some([wide, narrow, narrow]), spec).unwrap_err().to_string();
    assert!(error.ends_with("and maybe the biases of the three, [experts, outputs]"), "{error}");
}

#[test]
fn routers_check_their_groups_and_biases() {
    let mut graph = Graph::default();
    let scores = graph.argument(0, Shape::new([Dim::Tokens, Dim::Fixed(12)]), DType::F32);
    let groups = ExpertGroups { num: 4, num_chosen: 2, num_summed: 2 };
    let spec = RouterSpec { num_chosen: 6, scoring: Scoring::Sigmoid, groups: Some(groups), least_sum: Some(1e-20) };
    let [biases, row, short] = [vec![12], vec![1, 12], vec![11]].map(|shape| weight(&mut graph, &shape));
    let mixture = graph.route(scores, Some(biases), spec).unwrap();
    let printed = graph.node(mixture).to_string();
    let expected = "route %0, %1 chosen=6 normalised=true scoring=Sigmoid groups=2/4 summed=2 : [tokens, 12] float32";
    assert_eq!(printed, expected);
    assert!(graph.route(scores, Some(row), spec).is_ok());
    let error = graph.route(scores, Some(short), spec).unwrap_err().to_string();
    assert!(error.contains("and maybe a bias for each expert"), "{error}");
    for wrong in [
        RouterSpec { num_chosen: 7, ..spec },
        RouterSpec { num_chosen: 0, groups: None, ..spec },
        RouterSpec { num_chosen: 13, groups: None, ..spec },
        RouterSpec { least_sum: Some(0.0), ..spec },
        RouterSpec { groups: Some(ExpertGroups { num: 5, ..groups }), ..spec },
        RouterSpec { groups: Some(ExpertGroups { num: 0, ..groups }), ..spec },
        RouterSpec { groups: Some(ExpertGroups { num_chosen: 5, ..groups }), ..spec },
        RouterSpec { groups: Some(ExpertGroups { num_summed: 4, ..groups }), ..spec },
    ] {
        assert!(graph.route(scores, None, wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn values_have_a_width_of_their_own_and_stand_beside_their_keys() {
    let mut graph = Graph::default();
    let dims = |heads, dim| Shape::new([Dim::Tokens, Dim::Fixed(heads), Dim::Fixed(dim)]);
    let [q, k, v, other_v] = [(0, dims(4, 24)), (1, dims(2, 24)), (2, dims(2, 16)), (3, dims(1, 16))]
        .map(|(index, shape)| graph.argument(index, shape, DType::F32));
    let [keys, values, other_values] = [("keys", 24), ("values", 16), ("other values", 16)]
        .map(|(name, dim)| graph.state(&StateSpec::of_tokens(name, &[2, dim], None)));
    let spec = AttentionSpec { keys, values: values.into(), scale: 1.0, window: None, soft_cap: None, slopes: None };
    let attended = graph.paged_attention([q, k, v], None, spec).unwrap();
    assert_eq!(graph.node(attended).shape.to_string(), "[tokens, 4, 16]");
    assert!(graph.paged_attention([q, k, v], None, spec).is_ok());
    assert!(graph.paged_attention([q, k, other_v], None, spec).is_err());
    assert!(graph.paged_attention([q, k, v], None, AttentionSpec { values: other_values.into(), ..spec }).is_err());
}

#[test]
fn values_in_keys_are_no_longer_than_keys_and_of_one_size() {
    let mut graph = Graph::default();
    let dims = |heads, dim| Shape::new([Dim::Tokens, Dim::Fixed(heads), Dim::Fixed(dim)]);
    let [q, k, narrow] = [(0, dims(4, 24)), (1, dims(1, 24)), (2, dims(1, 16))]
        .map(|(index, shape)| graph.argument(index, shape, DType::F32));
    let keys = graph.state(&StateSpec::of_tokens("latents", &[1, 24], None));
    let spec = |value_dim| {
        let values = ValuesIn::Keys { value_dim };
        AttentionSpec { keys, values, scale: 1.0, window: None, soft_cap: None, slopes: None }
    };
    assert!([0, 25].into_iter().all(|value_dim| graph.latent_attention([q, k], spec(value_dim)).is_err()));
    assert!(graph.latent_attention([q, narrow], spec(16)).is_err());
    let attended = graph.latent_attention([q, k], spec(16)).unwrap();
    let printed = "paged_attention %0, %1 keys=0 values=keys scale=1 : [tokens, 4, 16] float32";
    assert_eq!(graph.node(attended).to_string(), printed);
    assert!(graph.latent_attention([q, k], spec(8)).is_err());
    let own = graph.state(&StateSpec::of_tokens("values", &[1, 16], None));
    assert!(graph.latent_attention([q, k], AttentionSpec { values: own.into(), ..spec(16) }).is_err());
}

#[test]
fn heads_are_multiplied_and_joined_one_by_one() {
    let mut graph = Graph::default();
    let dims = |heads, dim| Shape::new([Dim::Tokens, Dim::Fixed(heads), Dim::Fixed(dim)]);
    let [x, three] = [(0, dims(4, 6)), (1, dims(3, 6))].map(|(index, shape)| graph.argument(index, shape, DType::F32));
    let matrices = weight(&mut graph, &[4, 5, 6]);
    let y = graph.head_linear(x, matrices).unwrap();
    assert_eq!(graph.node(y).shape.to_string(), "[tokens, 4, 5]");
    assert!(graph.head_linear(three, matrices).is_err() && graph.head_linear(y, matrices).is_err());
    let joined = graph.join(y, x).unwrap();
    assert_eq!(graph.node(joined).shape.to_string(), "[tokens, 4, 11]");
    assert!(graph.join(x, three).is_err());
}

#[test]
fn shared_attention_needs_a_layer_that_writes() {
    let mut graph = Graph::default();
    let dims = |heads, dim| Shape::new([Dim::Tokens, Dim::Fixed(heads), Dim::Fixed(dim)]);
    let [q, k, v, narrow, odd] =
        [(0, dims(4, 24)), (1, dims(2, 24)), (2, dims(2, 16)), (3, dims(4, 16)), (4, dims(3, 24))]
            .map(|(index, shape)| graph.argument(index, shape, DType::F32));
    let [keys, values] =
        [("keys", 24), ("values", 16)].map(|(name, dim)| graph.state(&StateSpec::of_tokens(name, &[2, dim], Some(9))));
    let spec = AttentionSpec {
        keys,
        values: values.into(),
        scale: 1.0,
        window: Some(Window::Sliding(9)),
        soft_cap: None,
        slopes: None,
    };
    let error = graph.shared_attention(q, spec).unwrap_err().to_string();
    insta::assert_snapshot!(
        error,
        @"shared_attention of [tokens, 4, 24] float32: expected [tokens, heads, head_dim] with the sizes of the keys' state, heads a multiple of kv_heads, a window of at least 1 and at most that of the states, and an earlier operation that writes to both states"
    );
    graph.paged_attention([q, k, v], None, spec).unwrap();
    let attended = graph.shared_attention(q, spec).unwrap();
    let printed = "shared_attention %0 keys=0 values=1 scale=1 window=9 : [tokens, 4, 16] float32";
    assert_eq!(graph.node(attended).to_string(), printed);
    assert!(graph.shared_attention(q, AttentionSpec { window: None, ..spec }).is_err());
    assert!(graph.shared_attention(q, AttentionSpec { values: keys.into(), ..spec }).is_err());
    assert!([narrow, odd].into_iter().all(|q| graph.shared_attention(q, spec).is_err()));
}

#[test]
fn attention_reads_no_more_of_a_state_than_it_says() {
    let mut graph = Graph::default();
    let x = hidden(&mut graph, 96);
    let q = graph.reshape(x, &[6, 16]).unwrap();
    for (of_states, of_attention, is_valid) in [
        (None, None, true),
        (None, Some(Window::Sliding(9)), true),
        (Some(9), Some(Window::Sliding(9)), true),
        (Some(9), Some(Window::Sliding(8)), true),
        (Some(9), Some(Window::Sliding(10)), false),
        (Some(9), Some(Window::Chunked(9)), true),
        (Some(9), Some(Window::Chunked(10)), false),
        (Some(9), None, false),
        (None, Some(Window::Sliding(0)), false),
        (None, Some(Window::Chunked(0)), false),
    ] {
        let [keys, values] = ["keys", "values"].map(|name| {
            let name = format!("{name} of {of_states:?}");
            graph.state(&StateSpec::of_tokens(name, &[6, 16], of_states))
        });
        let spec = AttentionSpec {
            keys,
            values: values.into(),
            scale: 1.0,
            window: of_attention,
            soft_cap: None,
            slopes: None,
        };
        assert_eq!(graph.paged_attention([q, q, q], None, spec).is_ok(), is_valid, "{of_states:?}, {of_attention:?}");
    }
}

#[test]
fn a_running_sum_checks_its_state() {
    let mut graph = Graph::default();
    let x = hidden(&mut graph, 6);
    let state = graph.state(&StateSpec::of_slots("sums", &[6]));
    assert!(graph.running_sum(x, state).is_ok());
    let numbers = Numbers::Exact(DType::Float(FloatType::Bf16));
    for other in [
        StateSpec::of_slots("too few", &[5]),
        StateSpec::of_slots("none", &[]),
        StateSpec::of_tokens("tokens", &[6], None),
        StateSpec { numbers, ..StateSpec::of_slots("rounded", &[6]) },
    ] {
        let state = graph.state(&other);
        let error = graph.running_sum(x, state).unwrap_err().to_string();
        let expected = "expected [tokens, n] float32, and a state of slots [n] float32";
        assert_eq!(error, format!("running_sum of [tokens, 6] float32: {expected}"));
    }
}

#[test]
fn the_columns_are_there() {
    let mut graph = Graph::default();
    let x = hidden(&mut graph, 6);
    let some = graph.columns(x, 1..5).unwrap();
    insta::assert_snapshot!(graph.node(some), @"columns %0 first=1 : [tokens, 4] float32");
    let error = graph.columns(x, 2..7).unwrap_err().to_string();
    insta::assert_snapshot!(error, @"columns of [tokens, 6] float32: expected [n, 7 or more]");
}

#[test]
fn rows_and_scalars_are_repeated() {
    let mut graph = Graph::default();
    let scores = graph.argument(0, Shape::new([Dim::Rows, Dim::Fixed(10)]), DType::F32);
    let per_row = graph.input(Input::Sampling { name: "temperature", dtype: DType::F32 });
    let one = graph.constant(1.0);
    for other in [scores, per_row, one] {
        let sum = graph.binary(Binary::Add, other, scores).unwrap();
        assert_eq!(graph.node(sum).shape.to_string(), "[rows, 10]");
    }
    let top_k = graph.input(Input::Sampling { name: "top_k", dtype: DType::I32 });
    let error = graph.binary(Binary::Add, scores, top_k).unwrap_err().to_string();
    insta::assert_snapshot!(error, @"add of [rows, 10] float32, [rows] int32: expected one type");
    let tokens = graph.input(Input::TokenIds);
    assert!(graph.binary(Binary::Add, scores, tokens).is_err());
}

#[test]
fn inputs_weights_and_constants_are_added_once() {
    let mut graph = Graph::default();
    assert_eq!(weight(&mut graph, &[2, 3]), weight(&mut graph, &[2, 3]));
    assert_eq!(graph.input(Input::Positions), graph.input(Input::Positions));
    assert_eq!(graph.constant(0.5), graph.constant(0.5));
    assert_ne!(graph.constant(0.5), graph.constant(1.5));
}

#[test]
fn values_die_after_their_last_use() {
    let mut graph = Graph::default();
    let x = hidden(&mut graph, 4);
    let doubled = graph.binary(Binary::Add, x, x).unwrap();
    let sum = graph.binary(Binary::Add, doubled, x).unwrap();
    let graph = graph.finish(&[sum]);
    let last_uses = graph.last_uses();
    assert!(last_uses[doubled.index()].is_empty());
    assert_eq!(last_uses[sum.index()], [doubled, x]);
    insta::assert_snapshot!(graph, @r"
    %0 = argument 0 : [tokens, 4] float32
    %1 = add %0, %0 : [tokens, 4] float32
    %2 = add %1, %0 : [tokens, 4] float32
    return %2
    ");
}

#[test]
fn slopes_fall_and_the_rest_are_between_them() {
    let slopes = Slopes { num_heads: 4, last_exponent: 8.0 };
    assert_eq!(slopes.of_rank(0, 4), [0.25, 0.0625, 0.015625, 0.00390625]);
    assert_eq!(slopes.of_rank(1, 2), [0.015625, 0.00390625]);
    let odd = Slopes { num_heads: 6, ..slopes };
    assert_eq!(odd.of_rank(2, 2), [0.5, 0.125]);
}
