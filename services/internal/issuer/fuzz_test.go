package issuer_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// FuzzVerify checks that a token with a changed header, changed claims or a changed signature is never accepted, and
// that no token makes the verifier panic. Text that decodes to the same bytes does not occur, because the encoding is
// strict.
func FuzzVerify(f *testing.F) {
	set := newSet(&testing.T{}, nil)
	valid := token(&testing.T{}, nil)
	f.Add(valid)
	f.Add("ey.ey.ey")
	f.Add(strings.Replace(valid, ".", "..", 1))
	f.Add(sign(&testing.T{}, "HS256", object{"alg": "HS256", "kid": "rsa"}, claims(nil)))
	f.Add(sign(&testing.T{}, "RS256", object{"alg": "RS256", "kid": "rsa"}, `{"iss":"https://login.example.com"}`))
	want, refusal := set.Verify(valid, now)
	if refusal != nil {
		f.Fatal(refusal)
	}
	f.Fuzz(func(t *testing.T, text string) {
		identity, refusal := set.Verify(text, now)
		if refusal == nil && (text != valid || !proto.Equal(identity.Principal, want.Principal)) {
			t.Errorf("%q is accepted as %v", text, identity.Principal)
		}
		if steps, _ := set.Explain(text, now); len(steps) == 0 {
			t.Errorf("%q is not explained", text)
		}
	})
}
