//! Checks the layering: which layer may name which. The message of a failure says where the
//! line belongs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// What each layer may name, besides itself and `error`, which everybody may.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("error", &[]),
    ("executor", &[]),
    ("wire", &["core"]),
    ("files", &["core", "executor"]),
    ("net", &["core", "files", "executor"]),
    ("host", &["core", "wire", "files", "executor"]),
    ("store", &["core", "wire", "files", "executor"]),
    ("kube", &["core", "wire", "files", "net", "executor"]),
    ("link", &["core", "wire", "files", "net", "executor"]),
    ("outside", &["core", "wire", "files", "net", "executor"]),
    ("dashboard", &["core", "wire", "files", "net", "executor"]),
    ("keeper", &["core", "wire", "files", "host"]),
    (
        "tasks",
        &[
            "core",
            "wire",
            "files",
            "executor",
            "net",
            "host",
            "store",
            "kube",
            "link",
            "outside",
            "dashboard",
            "keeper",
        ],
    ),
    ("config", &["core", "files"]),
    ("log", &["core"]),
    (
        "daemon",
        &[
            "core",
            "wire",
            "files",
            "executor",
            "net",
            "host",
            "store",
            "kube",
            "link",
            "outside",
            "dashboard",
            "keeper",
            "tasks",
            "config",
            "log",
        ],
    ),
    (
        "cli",
        &[
            "core",
            "wire",
            "files",
            "executor",
            "net",
            "host",
            "store",
            "kube",
            "link",
            "outside",
            "dashboard",
            "keeper",
            "tasks",
            "config",
            "log",
            "daemon",
        ],
    ),
    ("lib", &[]),
    ("main", &[]),
];

const ADAPTERS: &[&str] = &[
    "host",
    "store",
    "kube",
    "link",
    "outside",
    "dashboard",
    "keeper",
];

/// Pairs of files that import each other, each with its reason.
const PAIRS: &[(&str, &str, &str)] = &[
    (
        "cli::args",
        "cli::table",
        "a row of the table has the function that runs the command, and its argument is what was read by the table",
    ),
    ("store::audit", "store::disk", STATE_OF_THE_THREAD),
    ("store::clock", "store::disk", STATE_OF_THE_THREAD),
    ("store::disk", "store::identity", STATE_OF_THE_THREAD),
    ("store::disk", "store::journal", STATE_OF_THE_THREAD),
    ("store::disk", "store::notes", STATE_OF_THE_THREAD),
];

const STATE_OF_THE_THREAD: &str = "store::disk is the state of the store's thread: it opens and tends what each of these files keeps, and their calls \
     run on it";

#[test]
fn every_layer_names_only_layers_that_it_may() {
    let src = root().join("src");
    assert!(rust_files(&src).len() > 30, "the scan finds no files");
    let mut wrong = Vec::new();
    for file in rust_files(&src) {
        let below = file.strip_prefix(&src).unwrap();
        let layer = below.iter().next().unwrap().to_str().unwrap();
        let layer = layer.trim_end_matches(".rs");
        let Some((_, may)) = MAY_NAME.iter().find(|(name, _)| *name == layer) else {
            wrong.push(format!("src/{}: no such layer in the plan; give {layer} a line in tests/it/tidy.rs and src/ARCHITECTURE.md", below.display()));
            continue;
        };
        for named in layers_named(&program_text(&file)) {
            if named != layer && named != "error" && !may.contains(&named.as_str()) {
                wrong.push(format!(
                    "src/{}: {}",
                    below.display(),
                    advice(layer, &named)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_test_is_switched_off_and_no_file_knows_this_machine() {
    // In two parts, so that this file passes.
    let ignored = concat!("#[", "ignore");
    let here = root().display().to_string();
    let mut wrong = Vec::new();
    for folder in ["src", "tests"] {
        for file in rust_files(&root().join(folder)) {
            let text = fs::read_to_string(&file).unwrap();
            for forbidden in [ignored, here.as_str()] {
                if text.contains(forbidden) {
                    wrong.push(format!("{} contains {forbidden}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn comments_are_at_most_100_columns_wide() {
    let mut wrong = Vec::new();
    for folder in ["src", "tests"] {
        for file in rust_files(&root().join(folder)) {
            let text = fs::read_to_string(&file).unwrap();
            for (line, number) in text.lines().zip(1..) {
                let words = line.trim_start();
                // A row of a table is one line.
                let is_row = words.starts_with("//! |") || words.starts_with("/// |");
                if words.starts_with("//") && !is_row && line.chars().count() > 100 {
                    wrong.push(format!("{}:{number}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Each type that the standard library sorts costs the release 5 KB.
#[test]
fn slices_are_sorted_by_the_one_algorithm_of_core_order() {
    let sorts = [
        ".sort()",
        ".sort_by(",
        ".sort_by_key(",
        ".sort_by_cached_key(",
        ".sort_unstable",
    ];
    // The Pods of a large cluster are sorted each minute, by a key that takes long to compute.
    let allowed = ["core/order.rs", "core/cluster/mod.rs"];
    let mut wrong = Vec::new();
    for file in rust_files(&root().join("src")) {
        let is_test = file.components().any(|part| part.as_os_str() == "tests");
        let is_allowed = is_test || allowed.iter().any(|allowed| file.ends_with(allowed));
        let text = program_text(&file);
        for line in text.lines().filter(|_| !is_allowed) {
            if sorts.iter().any(|sort| line.contains(sort)) {
                wrong.push(format!("{}: {}", file.display(), line.trim()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "\nuse core::order::OrderExt, or collect with GatherExt:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn no_folders_of_a_layer_import_each_other_in_a_circle() {
    // `tasks::apps`, whether it is a folder or a file.
    let folder = |module: &str| {
        let (layer, rest) = module.split_once("::")?;
        let name = rest.split("::").next().unwrap_or(rest);
        Some((layer.to_owned(), format!("{layer}::{name}")))
    };
    let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, named) in without_pairs(imports()) {
        let Some((layer, of)) = folder(&module) else {
            continue;
        };
        let named = named.iter().filter_map(|named| folder(named));
        let named = named.filter(|(other, named)| *other == layer && *named != of);
        let named: Vec<_> = named.map(|(_, named)| named).collect();
        folders.entry(of).or_default().extend(named);
    }
    let circle = circle(folders);
    assert!(
        circle.is_empty(),
        "these folders import each other in a circle: {circle:?}; hand in a value or a closure, or move what both need \
         up into a file beside them"
    );
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let imports = imports();
    assert!(
        imports.values().any(|named| !named.is_empty()),
        "the scan finds no imports"
    );
    let mut pairs = BTreeSet::new();
    for (one, named) in &imports {
        for other in named {
            if imports[other].contains(one) && one < other {
                pairs.insert((one.as_str(), other.as_str()));
            }
        }
    }
    let permitted: BTreeSet<_> = PAIRS.iter().map(|(one, other, _)| (*one, *other)).collect();
    let gone: Vec<_> = permitted.difference(&pairs).collect();
    assert!(
        gone.is_empty(),
        "these files no longer import each other; take them out of PAIRS: {gone:?}"
    );
    let circle = circle(without_pairs(imports));
    assert!(
        circle.is_empty(),
        "these files import each other in a circle: {circle:?}; move what they need into a file of its own, or join two"
    );
}

#[test]
fn a_circle_of_three_is_found_without_what_only_leads_to_it() {
    let imports = |of: &[(&str, &str)]| {
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (one, other) in of {
            let named = imports.entry((*one).to_owned()).or_default();
            named.insert((*other).to_owned());
        }
        imports
    };
    let seen = circle(imports(&[
        ("a", "b"),
        ("b", "c"),
        ("c", "d"),
        ("d", "b"),
        ("d", "e"),
    ]));
    let seen: Vec<_> = seen.keys().map(String::as_str).collect();
    assert_eq!(seen, ["b", "c", "d"]);
    assert!(circle(imports(&[("a", "b"), ("b", "c")])).is_empty());
}

#[test]
fn the_scan_of_files_follows_braces_and_parents() {
    let text = "use super::{super::table::Opt, show::{a, b}};\nuse crate::core::{time, url::Url};\n\
                fn f() { super::git::pull(crate::files::read()) }\n// crate::kube::Client\n";
    let named: Vec<_> = paths_named("cli::apps::deploy", text).into_iter().collect();
    assert_eq!(
        named,
        [
            "cli::apps::git::pull",
            "cli::apps::show::a",
            "cli::apps::show::b",
            "cli::table::Opt",
            "core::time",
            "core::url::Url",
            "files::read",
        ]
    );
    assert_eq!(module_of(Path::new("core/k3s/mod.rs")), "core::k3s");
}

#[test]
fn the_scan_sees_what_it_is_for() {
    let text = "use crate::{\n    core::{lanes, time::Now},\n    error::Error,\n    store,\n};\n\
                fn f() { crate::link::dial(); }\n// crate::kube is only mentioned\n";
    let named: Vec<_> = layers_named(text).into_iter().collect();
    assert_eq!(named, ["core", "error", "link", "store"]);
    assert_eq!(
        advice("store", "host"),
        "store/ may not use host/: no adapter knows another. Move the meeting of the two to tasks/"
    );
}

fn advice(layer: &str, named: &str) -> String {
    let rule = match (layer, named) {
        ("core", _) => "a decision knows nothing but decisions. Take what it needs as an argument",
        (_, "config") => {
            "settings are taken apart in daemon/mod.rs. Take a small struct of your own"
        }
        (_, "log") => "use the macros of the crate log",
        (_, "cli" | "daemon" | "tasks") => "those wire, they are not used. Move the line up there",
        (_, "net") => "only link, kube, outside and dashboard speak to the network",
        (layer, named) if ADAPTERS.contains(&layer) && ADAPTERS.contains(&named) => {
            "no adapter knows another. Move the meeting of the two to tasks/"
        }
        _ => "see the table in src/ARCHITECTURE.md",
    };
    format!("{layer}/ may not use {named}/: {rule}")
}

/// Files that each file imports, by module. The file of a folder and those in it are one thing: it
/// names its parts, and they name its types.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let src = root().join("src");
    let modules: BTreeMap<String, PathBuf> = rust_files(&src)
        .into_iter()
        .map(|file| (module_of(file.strip_prefix(&src).unwrap()), file))
        .collect();
    let is_in = |one: &str, other: &str| other.starts_with(&format!("{one}::"));
    let of = |module: &str, file: &Path| {
        let named = paths_named(module, &program_text(file)).into_iter();
        let named = named.filter_map(|path| file_of(&path, &modules));
        named
            .filter(|other| other != module && !is_in(module, other) && !is_in(other, module))
            .collect()
    };
    let imports = modules
        .iter()
        .map(|(module, file)| (module.clone(), of(module, file)));
    imports.collect()
}

/// Imports without those between the files of [`PAIRS`].
fn without_pairs(
    mut imports: BTreeMap<String, BTreeSet<String>>,
) -> BTreeMap<String, BTreeSet<String>> {
    for (one, other, _) in PAIRS {
        imports.get_mut(*one).unwrap().remove(*other);
        imports.get_mut(*other).unwrap().remove(*one);
    }
    imports
}

/// Modules that lie on a circle, or between two: what is left once those that import nothing of the
/// rest, and those that nothing of the rest imports, are taken away.
fn circle(mut imports: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let named: BTreeSet<String> = imports.values().flatten().cloned().collect();
        let before = imports.len();
        imports.retain(|module, of| !of.is_empty() && named.contains(module));
        let left: BTreeSet<String> = imports.keys().cloned().collect();
        for of in imports.values_mut() {
            of.retain(|other| left.contains(other));
        }
        if imports.len() == before {
            return imports;
        }
    }
}

/// Module of a file below `src`.
fn module_of(file: &Path) -> String {
    let path = file.with_extension("");
    let parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
    match parts.as_slice() {
        [folder @ .., "mod"] => folder.join("::"),
        parts => parts.join("::"),
    }
}

/// Longest beginning of a path that is a file.
fn file_of(path: &str, modules: &BTreeMap<String, PathBuf>) -> Option<String> {
    let mut path = path;
    while !modules.contains_key(path) {
        (path, _) = path.rsplit_once("::")?;
    }
    Some(path.to_owned())
}

/// Paths that begin with `crate` or `super` in the code of a module, from `src` on.
fn paths_named(module: &str, text: &str) -> BTreeSet<String> {
    let code: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    let code = code.join("\n");
    let mut paths = BTreeSet::new();
    let mut rest = code.as_str();
    while let Some(at) = rest
        .find("crate::")
        .into_iter()
        .chain(rest.find("super::"))
        .min()
    {
        let (before, mut tail) = rest.split_at(at);
        let is_whole = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let from: Vec<&str> = module.split("::").collect();
        if is_whole {
            take_path(&from, &mut tail, &mut paths);
        } else {
            (_, tail) = tail.split_at("crate::".len());
        }
        rest = tail;
    }
    paths
}

/// Takes one path, with the lists in its braces, from the beginning of `rest`.
fn take_path(from: &[&str], rest: &mut &str, paths: &mut BTreeSet<String>) {
    let mut at = from.to_vec();
    loop {
        *rest = rest.trim_start();
        if let Some(mut list) = rest.strip_prefix('{') {
            loop {
                list = list.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                if list.is_empty() || list.starts_with('}') {
                    break;
                }
                take_path(&at, &mut list, paths);
                // What follows a name: ` as other`.
                list = list.trim_start_matches(|c| c != ',' && c != '}');
            }
            *rest = list.get(1..).unwrap_or_default();
            return;
        }
        let named = word(rest);
        let (name, after) = rest.split_at(named.len());
        match named.as_str() {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" | "" => {}
            _ => at.push(name),
        }
        *rest = after;
        match after.strip_prefix("::") {
            Some(next) => *rest = next,
            None => break,
        }
    }
    paths.insert(at.join("::"));
}

/// The layers behind every `crate::`, whether alone or in braces.
fn layers_named(text: &str) -> BTreeSet<String> {
    let code: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    let code = code.join("\n");
    let mut layers = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => layers.extend(top_level(list)),
            None => layers.extend([word(rest)]),
        }
    }
    layers.remove("");
    // `crate::VERSION` and macros name no layer.
    layers.retain(|layer| layer.starts_with(|c: char| c.is_ascii_lowercase()));
    layers
}

/// The first words of a list in braces, without what stands in braces within.
fn top_level(list: &str) -> Vec<String> {
    let mut depth = 1;
    let mut top = String::new();
    for c in list.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            c if depth == 1 => top.push(c),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    top.split(',').map(|part| word(part.trim_start())).collect()
}

fn word(text: &str) -> String {
    text.chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect()
}

/// A file without its tests: those may arrange what they like.
fn program_text(file: &Path) -> String {
    if file.file_stem().is_some_and(|stem| stem == "tests") {
        return String::new();
    }
    let text = fs::read_to_string(file).unwrap_or_default();
    let (program, _) = text
        .split_once("#[cfg(test)]\nmod tests")
        .unwrap_or((&text, ""));
    program.to_owned()
}

pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
