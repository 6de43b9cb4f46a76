use super::*;

#[test]
fn one_answer_has_the_node_and_coredns() {
    let node = "condition|Ready|True|kubelet is posting\naddress|Hostname|box\naddress|InternalIP|192.0.2.7\n";
    for (dns, lacks) in [
        ("", false),
        ("dns|1|1\n", false),
        ("dns|2|1\n", false),
        ("dns|1|\n", true),
        ("dns|1|0\n", true),
        // Somebody scaled it to none.
        ("dns|0|\n", false),
    ] {
        let found = Node::parse(&format!("{node}{dns}")).unwrap();
        assert_eq!(found.lacks_dns, lacks, "{dns}");
        assert!(found.is_ready());
        assert_eq!(found.address, "192.0.2.7".parse().ok());
    }
    // CoreDNS alone is no node.
    assert_eq!(Node::parse("dns|1|1\n"), None);
    assert!(!jsonpath(Role::Worker).contains("items"));
}

#[test]
fn the_state_of_a_pod_has_the_reasons_that_it_has() {
    for (answer, said) in [
        ("", "it has no Pod"),
        ("\n\n", "it has no Pod"),
        (
            "coredns-1 on |Pending|0/1 nodes are available: 1 Too many pods.||||\n\n",
            "Pod coredns-1: Pending, 0/1 nodes are available: 1 Too many pods.",
        ),
        (
            "a|Running||||\n\nb on box|Running||||CrashLoopBackOff|back-off 5m0s|Error\n\n",
            "Pod b on box: Running, CrashLoopBackOff, back-off 5m0s, Error",
        ),
        (
            "b|Pending||||ErrImagePull|first\nsecond|\n\n",
            "Pod b: Pending, ErrImagePull, first\nsecond",
        ),
    ] {
        assert_eq!(pods_state(answer), said);
    }
}
