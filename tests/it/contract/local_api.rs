//! Routes and shapes of the local API, by its own description; and real answers, held against that.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::hold;
use crate::login::House;

pub(super) fn description() -> Value {
    serde_json::from_str(include_str!("../../../src/dashboard/assets/openapi.json")).unwrap()
}

fn reference(schema: &Value) -> Option<&str> {
    Some(schema["$ref"].as_str()?.rsplit_once('/')?.1)
}

fn texts(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|it| it.as_str().map_or_else(|| it.to_string(), str::to_owned))
        .collect()
}

/// The names of the types that a schema permits.
fn types(schema: &Value) -> Vec<String> {
    let of = &schema["type"];
    of.as_str()
        .map_or_else(|| texts(of), |one| vec![one.to_owned()])
}

/// The type that a schema describes, in one line.
fn kind(schema: &Value) -> String {
    if let Some(name) = reference(schema) {
        return name.to_owned();
    }
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().map(kind).collect::<Vec<_>>().join(" | ");
    }
    let types = types(schema);
    let mut kinds = Vec::new();
    for name in &types {
        kinds.push(match name.as_str() {
            "array" => format!("[{}]", kind(&schema["items"])),
            "object" => {
                let mut fields = fields(schema);
                if schema["additionalProperties"].is_object() {
                    fields.push(format!("*: {}", kind(&schema["additionalProperties"])));
                }
                format!("{{ {} }}", fields.join(", "))
            }
            other => other.to_owned(),
        });
    }
    let mut kind = kinds.join(" | ");
    for limit in [
        "enum",
        "minimum",
        "maximum",
        "minItems",
        "maxItems",
        "minLength",
        "format",
    ] {
        if !schema[limit].is_null() {
            write!(kind, " {limit} {}", schema[limit]).unwrap();
        }
    }
    kind
}

fn fields(schema: &Value) -> Vec<String> {
    let required = texts(&schema["required"]);
    let fields = schema["properties"].as_object().into_iter().flatten();
    let mut fields: Vec<_> = fields
        .map(|(name, of)| {
            let sign = if required.contains(name) { "" } else { "?" };
            format!("{name}{sign}: {}", kind(of))
        })
        .collect();
    fields.sort();
    fields
}

fn content(of: &Value) -> String {
    let content = of["content"].as_object().into_iter().flatten();
    let content = content.map(|(media, of)| format!("{media} {}", kind(&of["schema"])));
    content.collect::<Vec<_>>().join(", ")
}

#[test]
fn routes_keep_their_parameters_and_answers() {
    let description = description();
    let mut lines = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, route) in methods.as_object().unwrap() {
            lines.push(format!("{} {path}", method.to_uppercase()));
            for parameter in route["parameters"].as_array().into_iter().flatten() {
                let [name, place] = ["name", "in"].map(|it| parameter[it].as_str().unwrap());
                let sign = if parameter["required"] == true {
                    ""
                } else {
                    "?"
                };
                lines.push(format!(
                    "  {place} {name}{sign}: {}",
                    kind(&parameter["schema"])
                ));
            }
            if route["requestBody"].is_object() {
                lines.push(format!("  body: {}", content(&route["requestBody"])));
            }
            for (code, answer) in route["responses"].as_object().unwrap() {
                let told = reference(answer).map_or_else(|| content(answer), str::to_owned);
                lines.push(format!("  {code}: {told}"));
            }
        }
    }
    hold("routes.txt", lines);
}

#[test]
fn shapes_keep_their_fields_and_types() {
    let description = description();
    let mut lines = Vec::new();
    for (name, schema) in description["components"]["schemas"].as_object().unwrap() {
        lines.push(name.clone());
        lines.extend(fields(schema).into_iter().map(|field| format!("  {field}")));
    }
    hold("shapes.txt", lines);
}

/// A value of this schema that has everything: one element in each list, and no null.
pub(super) fn example(schema: &Value) -> Value {
    example_of(schema, &description()["components"]["schemas"])
}

fn example_of(schema: &Value, all: &Value) -> Value {
    if let Some(name) = reference(schema) {
        return example_of(&all[name], all);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let real = any.iter().find(|it| it["type"] != "null");
        return example_of(real.unwrap(), all);
    }
    if let Some(known) = schema["enum"].as_array() {
        return known[0].clone();
    }
    match types(schema)[0].as_str() {
        "array" => Value::from(vec![example_of(&schema["items"], all)]),
        "object" => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            let fields = fields.map(|(name, of)| (name.clone(), example_of(of, all)));
            Value::Object(fields.collect())
        }
        "integer" | "number" => Value::from(1),
        "boolean" => Value::from(true),
        _ => Value::from("2026-06-16T05:00:00Z"),
    }
}

/// Example answer of a route.
pub(super) fn answer(method: &str, path: &str) -> Value {
    let route = &description()["paths"][path][method];
    example(&route["responses"]["200"]["content"]["application/json"]["schema"])
}

/// Differences between a value and its schema.
pub(super) fn differences(value: &Value, schema: &Value, path: &str, found: &mut Vec<String>) {
    let all = &description()["components"]["schemas"];
    check(value, schema, (all, path), found);
}

fn check(value: &Value, schema: &Value, (all, path): (&Value, &str), found: &mut Vec<String>) {
    if let Some(name) = reference(schema) {
        return check(value, &all[name], (all, path), found);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let fits = |schema: &&Value| {
            let mut found = Vec::new();
            check(value, schema, (all, path), &mut found);
            found.is_empty()
        };
        if any.iter().find(fits).is_none() {
            found.push(format!("{path}: {value} is none of {}", kind(schema)));
        }
        return;
    }
    let types = types(schema);
    let is = |name: &str| types.iter().any(|it| it == name);
    let fits = match value {
        Value::Null => is("null"),
        Value::Bool(_) => is("boolean"),
        Value::Number(number) => is("number") || (is("integer") && !number.is_f64()),
        Value::String(_) => is("string"),
        Value::Array(_) => is("array"),
        Value::Object(_) => is("object"),
    };
    if !fits {
        found.push(format!("{path}: {value} is no {}", kind(schema)));
    }
    for (index, each) in value.as_array().into_iter().flatten().enumerate() {
        check(
            each,
            &schema["items"],
            (all, &format!("{path}[{index}]")),
            found,
        );
    }
    if let Some(fields) = value
        .as_object()
        .filter(|_| schema["properties"].is_object())
    {
        check_fields(fields, schema, (all, path), found);
    }
}

fn check_fields(
    fields: &Map<String, Value>,
    schema: &Value,
    (all, path): (&Value, &str),
    found: &mut Vec<String>,
) {
    for (name, value) in fields {
        match schema["properties"].get(name) {
            Some(schema) => check(value, schema, (all, &format!("{path}.{name}")), found),
            None => found.push(format!("{path}.{name} is described nowhere")),
        }
    }
    for name in texts(&schema["required"]) {
        if !fields.contains_key(&name) {
            found.push(format!("{path}.{name} is missing"));
        }
    }
}

#[test]
fn a_running_agent_answers_as_it_is_described() {
    let house = House::new(&[]);
    let description = description();
    let mut found = Vec::new();
    let mut count = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        let route = &methods["get"];
        let needs_more = route["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|it| it["required"] == true);
        let schema = &route["responses"]["200"]["content"]["application/json"]["schema"];
        if needs_more || reference(schema).is_none() {
            continue;
        }
        let heard = house.on_socket(&format!("GET {path}"), "");
        // What a machine without a cluster cannot say.
        if heard.code == 503 || heard.code == 404 {
            continue;
        }
        assert_eq!(heard.code, 200, "{path}: {}", heard.body);
        differences(&heard.json(), schema, path, &mut found);
        count += 1;
    }
    assert!(found.is_empty(), "{found:#?}");
    assert!(count >= 14, "{count} routes answered");
}
