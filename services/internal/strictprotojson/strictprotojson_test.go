package strictprotojson_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/internal/strictprotojson"
)

// large is a size limit that is larger than any message in these tests.
const large = 1 << 20

// read decodes JSON into a message of a type that the contract defines.
func read(t testing.TB, message protoreflect.Name, text string) (protoreflect.Message, error) {
	t.Helper()
	m := newMessage(t, message)
	return m, strictprotojson.Read([]byte(text), m)
}

// write returns the JSON encoding of a message.
func write(t testing.TB, m protoreflect.Message) string {
	t.Helper()
	out, err := strictprotojson.Append(nil, m, large)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// filled is the JSON of a message in which every field is set, in its only accepted form.
const filled = `{"flag":true,"i32":-2147483648,"s32":7,"i64":"-9223372036854775808","f64":"9223372036854775807","u32":4294967295,"u64":"18446744073709551615",` +
	`"single":0.1,"number":1e+100,"someText":"a\"\\é","data":"AP8=","kind":"short_note","color":"dark_blue","object":{"n":12345678901234567890,"a":[1,1.0]},` +
	`"numbers":[1,-2],"kinds":["long","short_note"],"inside":{"id":"x","inside":{"id":"y"}},"list":[{"id":"x"},{"id":""}],` +
	`"byName":{"a":{"id":"1"},"b~/c":{"id":"2"}},"sizes":{"":"1","x":"2"},"maybe":"","row":{"id":"r"}}`

func TestReadAndAppend_AreInverse(t *testing.T) {
	t.Parallel()
	m, err := read(t, "All", filled)
	if err != nil {
		t.Fatal(err)
	}
	if got := write(t, m); got != filled {
		t.Errorf("written is\n%s\nwant\n%s", got, filled)
	}
	known := `{"at":"2026-01-02T03:04:05Z","big":"9007199254740993","free":{"a":[null,true,1.5]},"none":{},"values":["a",""]}`
	if m, err = read(t, "Known", known); err != nil {
		t.Fatal(err)
	}
	if got := write(t, m); got != known {
		t.Errorf("written is\n%s\nwant\n%s", got, known)
	}
}

// A field without presence is written even if it is empty, so that clients need not know the defaults.
func TestAppend_WritesEmptyFieldsWithoutPresence(t *testing.T) {
	t.Parallel()
	want := `{"flag":false,"i32":0,"s32":0,"i64":"0","f64":"0","u32":0,"u64":"0","single":0,"number":0,"someText":"","data":"","color":"red","object":{},` +
		`"numbers":[],"kinds":[],"list":[],"byName":{},"sizes":{}}`
	if got := write(t, newMessage(t, "All")); got != want {
		t.Errorf("written is\n%s\nwant\n%s", got, want)
	}
}

func TestAppend_WritesUnusualValues(t *testing.T) {
	t.Parallel()
	m := newMessage(t, "All")
	set := func(name protoreflect.Name, v protoreflect.Value) { m.Set(m.Descriptor().Fields().ByName(name), v) }
	set("number", protoreflect.ValueOfFloat64(math.NaN()))
	set("single", protoreflect.ValueOfFloat32(float32(math.Inf(-1))))
	set("kind", protoreflect.ValueOfEnum(99))
	set("some_text", protoreflect.ValueOfString("<&>\u2028"))
	got := write(t, m)
	for _, want := range []string{`"number":null`, `"single":null`, `"kind":"99"`, `"someText":"<&>` + "\u2028" + `"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}

func TestAppend_OmitsProgressAndUnspecifiedValues(t *testing.T) {
	t.Parallel()
	m := newMessage(t, "Nothing")
	m.Mutable(m.Descriptor().Fields().ByName("progress"))
	if got := write(t, m); got != "{}" {
		t.Errorf("written is %s", got)
	}
	all, err := read(t, "All", `{"kinds":[]}`)
	if err != nil {
		t.Fatal(err)
	}
	kinds := all.Mutable(all.Descriptor().Fields().ByName("kinds")).List()
	kinds.Append(protoreflect.ValueOfEnum(0))
	if got := write(t, all); !strings.Contains(got, `"kinds":["unspecified"]`) || strings.Contains(got, `"kind":`) {
		t.Errorf("written is %s", got)
	}
}

func TestAppend_RefusesTextThatIsNoObject(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"[]", `"x"`, "{", "{} x", `{"a":1,"a":2}`, "null"} {
		m := newMessage(t, "All")
		m.Set(m.Descriptor().Fields().ByName("object"), protoreflect.ValueOfString(text))
		if out, err := strictprotojson.Append(nil, m, large); err == nil {
			t.Errorf("%s is written as %s", text, out)
		}
	}
}

func TestAppend_AppendsUpToItsLimit(t *testing.T) {
	t.Parallel()
	m, err := read(t, "All", filled)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := strictprotojson.Append([]byte("before"), m, large); err != nil || !strings.HasPrefix(string(out), `before{"flag"`) {
		t.Errorf("%s, %v", out, err)
	}
	if _, err := strictprotojson.Append(nil, m, 10); !errors.Is(err, strictprotojson.ErrTooLarge) {
		t.Errorf("a limit of 10 bytes: %v", err)
	}
	deep := newMessage(t, "Small")
	for inner, n := deep, 0; n < 1000; n++ { // many small messages exceed the limit together
		inner = inner.Mutable(inner.Descriptor().Fields().ByName("inside")).Message()
	}
	if _, err := strictprotojson.Append(nil, deep, 1000); !errors.Is(err, strictprotojson.ErrTooLarge) {
		t.Errorf("many messages: %v", err)
	}
}

// Read accepts exactly one form of each value. Otherwise the service that receives a call could read values other than
// the ones that the policy service evaluated.
func TestRead_RefusesOtherForms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[]`:                                "/: must be an object",
		`null`:                              "/: must be an object",
		``:                                  "/: must be an object",
		`{} {}`:                             "/: something follows the object",
		`{}x`:                               "/: something follows the object",
		`{"flag":1}`:                        "/flag: must be true or false",
		`{"flag":"true"}`:                   "/flag: must be true or false",
		`{"flag":null}`:                     "/flag: must be true or false",
		`{"i32":"1"}`:                       "/i32: must be a number",
		`{"i32":1.0}`:                       "/i32: must be a whole number, written in digits",
		`{"i32":1e2}`:                       "/i32: must be a whole number, written in digits",
		`{"i32":-0}`:                        "/i32: must be a whole number of 32 bits, without leading zeros",
		`{"i32":2147483648}`:                "/i32: must be a whole number of 32 bits, without leading zeros",
		`{"u32":-1}`:                        "/u32: must be a whole number of 32 bits, not below 0, without leading zeros",
		`{"u32":4294967296}`:                "/u32: must be a whole number of 32 bits, not below 0, without leading zeros",
		`{"i64":1}`:                         "/i64: must be a string of digits",
		`{"i64":"01"}`:                      "/i64: must be a whole number of 64 bits, without leading zeros",
		`{"i64":""}`:                        "/i64: must be a whole number of 64 bits, without leading zeros",
		`{"i64":" 1"}`:                      "/i64: must be a whole number, written in digits",
		`{"i64":"\u0031"}`:                  "/i64: must be a whole number, written in digits",
		`{"i64":"9223372036854775808"}`:     "/i64: must be a whole number of 64 bits, without leading zeros",
		`{"u64":"01"}`:                      "/u64: must be a whole number of 64 bits, not below 0, without leading zeros",
		`{"u64":"-1"}`:                      "/u64: must be a whole number of 64 bits, not below 0, without leading zeros",
		`{"single":"1"}`:                    "/single: must be a number",
		`{"single":1e39}`:                   "/single: is too large a number",
		`{"number":1e309}`:                  "/number: is too large a number",
		`{"someText":1}`:                    "/someText: must be a string",
		`{"someText":null}`:                 "/someText: must be a string",
		`{"data":"AP8"}`:                    "/data: must be base64 (RFC 4648, section 4)",
		`{"data":"AP9="}`:                   "/data: must be base64 (RFC 4648, section 4)",
		`{"data":"AP8=\n"}`:                 "/data: must be base64 (RFC 4648, section 4)",
		`{"data":"_-8="}`:                   "/data: must be base64 (RFC 4648, section 4)",
		`{"kind":1}`:                        "/kind: must be a string",
		`{"kind":"KIND_LONG"}`:              "/kind: must be one of short_note, long",
		`{"kind":"Long"}`:                   "/kind: must be one of short_note, long",
		`{"kind":"unspecified"}`:            "/kind: must be one of short_note, long",
		`{"color":"blue"}`:                  "/color: must be one of red, dark_blue",
		`{"object":"{}"}`:                   "/object: must be an object",
		`{"object":[]}`:                     "/object: must be an object",
		`{"numbers":1}`:                     "/numbers: must be an array",
		`{"numbers":[1,"2"]}`:               "/numbers/1: must be a number",
		`{"numbers":[1,null]}`:              "/numbers/1: must be a number",
		`{"kinds":["long","x"]}`:            "/kinds/1: must be one of short_note, long",
		`{"inside":null}`:                   "/inside: must be an object",
		`{"inside":{}}`:                     "/inside/id: is missing",
		`{"inside":{"id":"a","inside":{}}}`: "/inside/inside/id: is missing",
		`{"list":{}}`:                       "/list: must be an array",
		`{"list":[{"id":"a"},{"id":1}]}`:    "/list/1/id: must be a string",
		`{"list":[{"id":"a"},null]}`:        "/list/1: must be an object",
		`{"byName":[]}`:                     "/byName: must be an object",
		`{"byName":{"b~/c":{"id":1}}}`:      "/byName/b~0~1c/id: must be a string",
		`{"byName":{"a":{}}}`:               "/byName/a/id: is missing",
		`{"sizes":{"x":1}}`:                 "/sizes/x: must be a string of digits",
		`{"shelf":"a","row":{"id":"r"}}`:    "/row: is one of two that exclude each other",
		`{"row":{"id":"r"},"shelf":"a"}`:    "/shelf: is one of two that exclude each other",
		`{"some_text":"a"}`:                 "/some_text: is not known; the known fields are flag, i32,",
		`{"SomeText":"a"}`:                  "/SomeText: is not known; the known fields are flag, i32,",
		`{"progress":{}}`:                   "/progress: is not known; the known fields are flag, i32,",
		`{"a~b/c":1}`:                       "/a~0b~1c: is not known",
	} {
		_, err := read(t, "All", text)
		var broken *strictprotojson.Error
		if !errors.As(err, &broken) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestRead_RefusesTextThatIsNotJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{`, `{"flag"`, `{"flag":`, `{"flag":true`, `{"flag":true,}`, `{"flag":tru}`, `{"flag":true,"flag":true}`, `{"numbers":[1`, `{"numbers":[1 2]}`, `{"inside":{"id":"a"`,
		`{"list":[{"id":"a"}`, `{"byName":{"a":{"id":"1"}`, `{"sizes":{"x":"1","x":"2"}}`, `{"sizes":{"x"`, `{"object":{"a":1,"a":2}}`, `{"someText":"` + "\xff" + `"}`, `{"someText":"\ud800"}`,
	} {
		m, err := read(t, "All", text)
		if _, ok := errors.AsType[*strictprotojson.Error](err); !ok {
			t.Errorf("%s is read as %v: %v", text, m.Interface(), err)
		}
	}
}

func TestRead_RefusesOtherFormsOfWellKnownTypes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"at":7}`:                   "/at: is not a valid Timestamp",
		`{"at":"yesterday"}`:         "/at: is not a valid Timestamp",
		`{"big":9007199254740993}`:   "/big: must be a string of digits",
		`{"big":null}`:               "/big: must be a string of digits",
		`{"free":[]}`:                "/free: is not a valid Struct",
		`{"any":{"@type":"x"}}`:      "/any: is not offered",
		`{"any":{}}`:                 "/any: is not offered",
		`{"none":{"x":1}}`:           "/none: is not a valid Empty",
		`{"values":["a",1]}`:         "/values/1: must be a string",
		`{"values":[{"value":"a"}]}`: "/values/0: must be a string",
		`{"at":`:                     "/at: ",
	} {
		if _, err := read(t, "Known", text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestRead_RefusesWhatToolsCannotHave(t *testing.T) {
	t.Parallel()
	if _, err := read(t, "Numbered", `{"byNumber":{"1":"a"}}`); err == nil || err.Error() != "/byNumber: has keys that are not strings, which tools can't accept" {
		t.Errorf("a map with numbers as keys: %v", err)
	}
	if _, err := read(t, "Nothing", `{"x":1}`); err == nil || !strings.HasPrefix(err.Error(), "/x: is not known; ") {
		t.Errorf("a field of a message without fields: %v", err)
	}
	if _, err := read(t, "Small", `{}`); err == nil || err.Error() != "/id: is missing" {
		t.Errorf("a required field: %v", err)
	}
}

// An optional field is the only field in a synthetic oneof, so it does not exclude any other field.
func TestRead_KeepsPresence(t *testing.T) {
	t.Parallel()
	m, err := read(t, "All", `{"maybe":"","someText":""}`)
	if err != nil {
		t.Fatal(err)
	}
	if !m.Has(m.Descriptor().Fields().ByName("maybe")) || !strings.Contains(write(t, m), `"maybe":""`) {
		t.Error("an empty optional text is absent")
	}
	if m, err = read(t, "All", `{}`); err != nil || strings.Contains(write(t, m), "maybe") || strings.Contains(write(t, m), "inside") {
		t.Errorf("absent fields are written as %s: %v", write(t, m), err)
	}
}

// The JSON text of an object is not changed, because its numbers may have more digits than a float64.
func TestRead_KeepsTheTextOfObjects(t *testing.T) {
	t.Parallel()
	m, err := read(t, "All", `{"object": {"n" : 1.50} }`)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Get(m.Descriptor().Fields().ByName("object")).String(); got != `{"n" : 1.50}` {
		t.Errorf("read is %s", got)
	}
}

func TestDescriptors_AreClassified(t *testing.T) {
	t.Parallel()
	if !strictprotojson.IsProgress(field(t, "All", "progress")) || strictprotojson.IsProgress(field(t, "Steps", "steps")) || strictprotojson.IsProgress(field(t, "All", "inside")) || strictprotojson.IsProgress(field(t, "All", "flag")) {
		t.Error("IsProgress")
	}
	if !strictprotojson.IsJSON(field(t, "All", "object")) || strictprotojson.IsJSON(field(t, "All", "some_text")) || strictprotojson.IsJSON(field(t, "All", "data")) {
		t.Error("IsJSON")
	}
	for name, want := range map[protoreflect.Name]bool{"at": true, "big": true, "free": true, "any": true, "none": true} {
		if strictprotojson.IsWellKnown(field(t, "Known", name).Message()) != want {
			t.Errorf("IsWellKnown of %s: %t", name, !want)
		}
	}
	if strictprotojson.IsWellKnown(field(t, "All", "inside").Message()) || strictprotojson.IsWellKnown(field(t, "All", "progress").Message()) {
		t.Error("IsWellKnown of other messages")
	}
	kinds, colors := field(t, "All", "kind").Enum().Values(), field(t, "All", "color").Enum().Values()
	if !strictprotojson.IsUnspecified(kinds.Get(0)) || strictprotojson.IsUnspecified(kinds.Get(1)) || strictprotojson.IsUnspecified(colors.Get(0)) {
		t.Error("IsUnspecified")
	}
	if rules := strictprotojson.Rules(field(t, "Small", "id")); !rules.GetRequired() || rules.GetString().GetMaxLen() != 3 {
		t.Errorf("the rules of id are %v", rules)
	}
	if rules := strictprotojson.Rules(field(t, "All", "flag")); rules != nil {
		t.Errorf("the rules of flag are %v", rules)
	}
}

// FuzzRead reads JSON, writes the message as JSON, and then reads and writes that output again. Both outputs must be
// equal.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{filled, `{}`, `{"object":{"a":[1]}}`, `{"number":1e-7}`, `{"sizes":{"a":"1"}}`, `{"single":1e38}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first, err := read(t, "All", text)
		if err != nil {
			return
		}
		written := write(t, first)
		second, err := read(t, "All", written)
		if err != nil {
			t.Fatalf("%q is written as %q: %v", text, written, err)
		}
		if again := write(t, second); again != written {
			t.Errorf("%q is written as %q, and that as %q", text, written, again)
		}
	})
}
