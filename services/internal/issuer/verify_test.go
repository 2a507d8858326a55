package issuer_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
)

func TestVerify_AcceptsEachAlgorithm(t *testing.T) {
	t.Parallel()
	set := newSet(t, nil)
	for algorithm, key := range map[string]string{"RS256": "rsa", "PS256": "rsa", "ES256": "ec", "EdDSA": "ed"} {
		for _, kind := range []any{nil, "JWT", "jwt", "at+jwt", "application/at+jwt"} {
			header := object{"alg": algorithm, "kid": key}
			if kind != nil {
				header["typ"] = kind
			}
			identity, refusal := set.Verify(sign(t, algorithm, header, claims(nil)), now)
			if refusal != nil {
				t.Errorf("%s, typ %v: %v", algorithm, kind, refusal)
				continue
			}
			want := &identityv1.Principal{Tenant: "default", Subject: "corp/ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Issuer: "corp"}
			if !proto.Equal(identity.Principal, want) {
				t.Errorf("%s: the principal is %v, want %v", algorithm, identity.Principal, want)
			}
			if want := now.Add(time.Hour + 30*time.Second); !identity.Expires.Equal(want) {
				t.Errorf("%s: the token expires at %v, want %v", algorithm, identity.Expires, want)
			}
		}
	}
}

// Each token differs from a valid token in one way. The attacks on JWTs are those of RFC 8725, sections 2 and 3.
func TestVerify_RefusesTokens(t *testing.T) {
	t.Parallel()
	header := func(changes object) object {
		out := object{"alg": "RS256", "kid": "rsa", "typ": "JWT"}
		maps.Copy(out, changes)
		return out
	}
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	valid := token(t, nil)
	signed := func(changes object) string { return sign(t, "RS256", header(nil), claims(changes)) }
	withHeader := func(changes object) string { return sign(t, "RS256", header(changes), claims(nil)) }
	unsigned, _, _ := strings.Cut(valid, ".")
	for name, test := range map[string]struct {
		token  string
		reason issuer.Reason
	}{
		"empty":                           {"", issuer.Malformed},
		"two parts":                       {"ey.ey", issuer.Malformed},
		"four parts":                      {valid + ".x", issuer.Malformed},
		"no signature":                    {valid[:strings.LastIndex(valid, ".")+1], issuer.Malformed},
		"padding":                         {unsigned + "=" + valid[len(unsigned):], issuer.Malformed},
		"longer than 16 KiB":              {signed(object{"x": strings.Repeat("a", 16<<10)}), issuer.Malformed},
		"a claim twice":                   {sign(t, "RS256", header(nil), `{"iss":"https://login.example.com","sub":"ana","sub":"root","aud":"api://sluice","iat":1,"exp":9999999999}`), issuer.Malformed},
		"claims are a list":               {sign(t, "RS256", header(nil), `[]`), issuer.Malformed},
		"claims are null":                 {sign(t, "RS256", header(nil), `null`), issuer.Malformed},
		"text after the claims":           {sign(t, "RS256", header(nil), `{}{}`), issuer.Malformed},
		"invalid UTF-8":                   {sign(t, "RS256", header(nil), "{\"iss\":\"\xff\"}"), issuer.Malformed},
		"alg none":                        {encode(t, header(object{"alg": "none"})) + "." + encode(t, claims(nil)) + ".", issuer.Malformed},
		"alg none with a signature":       {withHeader(object{"alg": "none"}), issuer.WrongAlgorithm},
		"alg None":                        {withHeader(object{"alg": "None"}), issuer.WrongAlgorithm},
		"HS256 with the RSA key":          {sign(t, "HS256", header(object{"alg": "HS256"}), claims(nil)), issuer.WrongAlgorithm},
		"an algorithm of another key":     {withHeader(object{"kid": "ec"}), issuer.WrongAlgorithm},
		"an algorithm that is not listed": {withHeader(object{"alg": "RS512"}), issuer.WrongAlgorithm},
		"alg is a list":                   {withHeader(object{"alg": []string{"RS256"}}), issuer.Malformed},
		"no alg":                          {sign(t, "RS256", object{"kid": "rsa"}, claims(nil)), issuer.WrongAlgorithm},
		"kid is a path":                   {withHeader(object{"kid": "../../dev/null"}), issuer.UnknownKey},
		"kid is SQL":                      {withHeader(object{"kid": "' UNION SELECT 'x"}), issuer.UnknownKey},
		"kid is a number":                 {withHeader(object{"kid": 1}), issuer.Malformed},
		"kid is too long":                 {withHeader(object{"kid": strings.Repeat("k", 257)}), issuer.Malformed},
		"jku":                             {withHeader(object{"jku": "https://evil.example/keys"}), issuer.Malformed},
		"x5u":                             {withHeader(object{"x5u": "https://evil.example/cert"}), issuer.Malformed},
		"jwk":                             {withHeader(object{"jwk": object{"kty": "RSA"}}), issuer.Malformed},
		"crit":                            {withHeader(object{"crit": []string{"b64"}, "b64": false}), issuer.Malformed},
		"a logout token":                  {withHeader(object{"typ": "logout+jwt"}), issuer.Malformed},
		"an ID-JAG":                       {withHeader(object{"typ": "oauth-id-jag+jwt"}), issuer.Malformed},
		"another issuer":                  {signed(object{"iss": "https://login.example.com/"}), issuer.UnknownIssuer},
		"no issuer":                       {signed(object{"iss": nil}), issuer.UnknownIssuer},
		"issuer is a list":                {signed(object{"iss": []string{"https://login.example.com"}}), issuer.Malformed},
		"another audience":                {signed(object{"aud": "https://other.example.com/mcp"}), issuer.WrongAudience},
		"no audience":                     {signed(object{"aud": nil}), issuer.WrongAudience},
		"audience with a slash":           {signed(object{"aud": "https://mcp.example.com/mcp/"}), issuer.WrongAudience},
		"audience with a path":            {signed(object{"aud": "https://mcp.example.com/mcp/a/b"}), issuer.WrongAudience},
		"audience in upper case":          {signed(object{"aud": "https://MCP.example.com/mcp"}), issuer.WrongAudience},
		"audience with a number":          {signed(object{"aud": []any{1}}), issuer.Malformed},
		"expired":                         {signed(object{"exp": at(-30 * time.Second)}), issuer.Expired},
		"no exp":                          {signed(object{"exp": nil}), issuer.WrongClaim},
		"exp is a text":                   {signed(object{"exp": "9999999999"}), issuer.Malformed},
		"exp is negative":                 {signed(object{"exp": -1}), issuer.Malformed},
		"exp is too large":                {signed(object{"exp": 1e300}), issuer.Malformed},
		"issued in the future":            {signed(object{"iat": at(31 * time.Second)}), issuer.NotYetValid},
		"not valid yet":                   {signed(object{"nbf": at(31 * time.Second)}), issuer.NotYetValid},
		"valid for too long":              {signed(object{"exp": at(2*time.Hour - 59*time.Second)}), issuer.TooLong},
		"no iat":                          {signed(object{"iat": nil}), issuer.WrongClaim},
		"bound to a key":                  {signed(object{"cnf": object{"jkt": "x"}}), issuer.WrongClaim},
		"delegated":                       {signed(object{"act": object{"sub": "bot"}}), issuer.WrongClaim},
		"no subject":                      {signed(object{"sub": nil}), issuer.WrongClaim},
		"empty subject":                   {signed(object{"sub": ""}), issuer.WrongClaim},
		"subject is a number":             {signed(object{"sub": 7}), issuer.WrongClaim},
		"control character":               {signed(object{"sub": "ana\nroot"}), issuer.WrongClaim},
		"subject is too long":             {signed(object{"sub": strings.Repeat("a", 252)}), issuer.WrongClaim},
		"another signature":               {valid[:strings.LastIndex(valid, ".")+1] + token(t, object{"sub": "bob"})[strings.LastIndex(token(t, object{"sub": "bob"}), ".")+1:], issuer.WrongSignature},
	} {
		identity, refusal := newSet(t, nil).Verify(test.token, now)
		switch {
		case refusal == nil:
			t.Errorf("%s: accepted as %v", name, identity.Principal)
		case refusal.Reason != test.reason:
			t.Errorf("%s: refused as %q, want %q: %v", name, refusal.Reason, test.reason, refusal)
		case strings.Contains(refusal.Error(), "ana"):
			t.Errorf("%s: the refusal contains the value of a claim: %v", name, refusal)
		}
	}
}

// The leeway is 30 s: a clock that differs by 29 s is accepted, and one that differs by 31 s is not.
func TestVerify_AcceptsClocksThatDifferByLessThanTheLeeway(t *testing.T) {
	t.Parallel()
	set := newSet(t, nil)
	for _, test := range []struct {
		claim    string
		at       time.Duration
		accepted bool
	}{
		{"exp", -29 * time.Second, true},
		{"exp", -31 * time.Second, false},
		{"nbf", 29 * time.Second, true},
		{"nbf", 31 * time.Second, false},
		{"iat", 29 * time.Second, true},
		{"iat", 31 * time.Second, false},
	} {
		if _, refusal := set.Verify(token(t, object{test.claim: now.Add(test.at).Unix()}), now); (refusal == nil) != test.accepted {
			t.Errorf("%s differs by %v: refused with %v, want accepted %v", test.claim, test.at, refusal, test.accepted)
		}
	}
}

func TestVerify_AudienceOpensOneServerOrAll(t *testing.T) {
	t.Parallel()
	const mesh = "https://mcp.example.com/mcp"
	set := newSet(t, nil)
	for _, test := range []struct {
		audience any
		servers  []string
	}{
		{mesh, nil},
		{"api://sluice", nil},
		{mesh + "/github", []string{"github"}},
		{[]string{mesh + "/notes", "https://other.example.com", mesh + "/github", mesh + "/notes"}, []string{"github", "notes"}},
		{[]string{mesh + "/notes", "api://sluice"}, nil},
	} {
		identity, refusal := set.Verify(token(t, object{"aud": test.audience}), now)
		if refusal != nil || !slices.Equal(identity.Principal.GetServers(), test.servers) {
			t.Errorf("audience %v: servers %v, refusal %v; want %v", test.audience, identity.Principal.GetServers(), refusal, test.servers)
		}
	}
}

// A token without kid is accepted only if one key fits its algorithm.
func TestVerify_TokenWithoutKidNeedsOneFittingKey(t *testing.T) {
	t.Parallel()
	noKid := sign(t, "EdDSA", object{"alg": "EdDSA"}, claims(nil))
	if _, refusal := newSet(t, nil).Verify(noKid, now); refusal != nil {
		t.Errorf("one key fits: %v", refusal)
	}
	two := newSet(t, func(i *identityv1.Issuer) {
		i.Keys = append(i.Keys, &identityv1.IssuerKey{Id: "ed2", PublicKey: i.GetKeys()[2].GetPublicKey()})
	})
	if _, refusal := two.Verify(noKid, now); refusal == nil || refusal.Reason != issuer.UnknownKey {
		t.Errorf("two keys fit: %v, want %q", refusal, issuer.UnknownKey)
	}
	if _, refusal := newSet(t, func(i *identityv1.Issuer) { i.Keys = nil }).Verify(noKid, now); refusal == nil || refusal.Reason != issuer.NoKeys {
		t.Errorf("no keys: %v, want %q", refusal, issuer.NoKeys)
	}
}

func TestExplain_ShowsEachStep(t *testing.T) {
	t.Parallel()
	set := newSet(t, func(i *identityv1.Issuer) { i.GroupsClaim = "/roles" })
	steps, identity := set.Explain(token(t, object{"roles": []string{"finance"}}), now)
	names := make([]string, len(steps))
	for i, step := range steps {
		names[i] = step.Name
	}
	want := []string{"format", "issuer", "algorithm", "audience", "time", "signature", "tenant", "subject", "groups"}
	if identity == nil || !slices.Equal(names, want) {
		t.Errorf("the steps are %v, want %v", names, want)
	}
	steps, identity = set.Explain(token(t, nil), now)
	last := steps[len(steps)-1]
	if identity != nil || !last.Refused || !strings.Contains(last.Text, "/roles") {
		t.Errorf("the last step is %+v, want a refusal that names the claim /roles", last)
	}
}
