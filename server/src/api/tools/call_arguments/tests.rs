use serde_json::json;

use super::*;

fn read(arguments: Arguments, text: &str, properties: Value) -> Result<String, Mismatch> {
    let parameters = json!({ "type": "object", "properties": properties });
    arguments.read(&mut Cursor::new(text), &Function { name: "f".into(), parameters })
}

#[test]
fn literals_of_python_become_json() {
    let text = r#"a='it\'s "x"\n', b=[1, -2.5, (True, None)], c={"k": 'v', }, d="\ud83d\ude00\/", e=1_000, f=.5)"#;
    let json =
        r#"{"a": "it's \"x\"\n", "b": [1, -2.5, [true, null]], "c": {"k": "v"}, "d": "😀/", "e": 1000, "f": 0.5}"#;
    assert_eq!(read(Arguments::Python, text, json!({})), Ok(json.to_owned()));
    let by_place = read(Arguments::Python, "'Rome', 3)", json!({ "city": {}, "days": {} }));
    assert_eq!(by_place, Ok(r#"{"city": "Rome", "days": 3}"#.to_owned()));
    for cut in ["a=1", "a='x", "a=[1, 2", "a=Tru"] {
        assert_eq!(read(Arguments::Python, cut, json!({})), Err(Mismatch::Until(")")), "{cut}");
    }
    for wrong in ["a=x)", "1)", "a=1 b=2)", "a=f(1))"] {
        assert_eq!(read(Arguments::Python, wrong, json!({})), Err(Mismatch::Other), "{wrong}");
    }
}

#[test]
fn values_between_tags_have_the_types_of_their_schemas() {
    let tags = Tags {
        before_name: "<p=",
        after_name: ">",
        before_value: "\n",
        after_value: "</p>",
        separator: "\n",
        wrapper: Some(["<![CDATA[", "]]>"]),
    };
    let number_or_text = json!({ "type": ["string", "integer"] });
    for (value, schema, json) in [
        ("5", json!({ "type": "string" }), r#""5""#),
        ("5", json!({ "type": "integer" }), "5"),
        ("5", number_or_text.clone(), "5"),
        ("5.5", number_or_text, r#""5.5""#),
        (" a\n b ", json!({ "type": "string" }), r#"" a\n b ""#),
        ("null", json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }), "null"),
        ("{\"a\": [1]}", json!(true), "{\"a\": [1]}"),
        ("[1.10]", json!({ "type": "array" }), "[1.10]"),
        ("True", json!({ "type": "boolean" }), "true"),
        ("<![CDATA[a < b]]>", json!({ "type": "string" }), r#""a < b""#),
        ("<p=y> \"</q>", json!({ "type": "string" }), r#""<p=y> \"</q>""#),
    ] {
        let text = format!("<p=x>\n{value}\n</p>\n</f>");
        let found = read(Arguments::Tags(tags), &text, json!({ "x": schema }));
        assert_eq!(found, Ok(format!("{{\"x\": {json}}}")), "{value}");
    }
}

#[test]
fn members_with_marks_around_strings_become_json() {
    let quote = "<|\"|>";
    let text = r#"a:<|"|>x "y", {z}<|"|>,b:[1,{c:true,d:<|"|><|"|>}],e:word}"#;
    let json = r#"{"a": "x \"y\", {z}", "b": [1, {"c": true, "d": ""}], "e": "word"}"#;
    assert_eq!(read(Arguments::Members { quote }, text, json!({})), Ok(json.to_owned()));
    assert_eq!(read(Arguments::Members { quote }, "a:<|\"|>x}", json!({})), Err(Mismatch::Until(quote)));
    assert_eq!(read(Arguments::Members { quote }, "a:[1", json!({})), Err(Mismatch::Until("}")));
}
