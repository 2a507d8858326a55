package engine_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// bucketCase is a call and a limit that applies to it.
type bucketCase struct {
	Document, Rule      string
	Window              time.Duration
	Per                 []engine.Dimension
	Server, Tool        string
	Tenant, Name, Agent string
	Session, Run        string
	max                 int64          // no bucket depends on it
	defaults            engine.Default // no bucket depends on it
}

func (c bucketCase) bucket(t rapid.TB) (own, capped string) {
	d := engine.Document{Name: c.Document, Default: c.defaults, Rules: []engine.Rule{{
		Name: c.Rule, Action: engine.ActionAllow, Limits: []engine.RateLimit{{Max: c.max, Window: c.Window, Per: c.Per}},
	}}}
	set, err := engine.Compile([]engine.Document{d}, options)
	if err != nil {
		t.Fatal(err)
	}
	limits := set.Decide(engine.Call{Facts: callable, Server: c.Server, Tool: c.Tool, Subject: engine.Subject{Caller: engine.Principal{
		Tenant: c.Tenant, Name: c.Name, Agent: c.Agent, Session: c.Session, Run: c.Run,
	}}}).Limits
	if len(limits) > 1 {
		capped = limits[1].Bucket
	}
	return limits[0].Bucket, capped
}

// baseCase returns a call and a limit that is counted by every dimension except the owner, so that its bucket depends
// on every property of the call.
func baseCase() bucketCase {
	return bucketCase{
		Document: "d", Rule: "r", Window: time.Minute, max: 10, Server: "s", Tool: "t", Tenant: "default", Name: "ana",
		Agent: "dev", Session: "s1",
		Per: []engine.Dimension{
			engine.PerSession, engine.PerPrincipal, engine.PerAgent, engine.PerTenant, engine.PerServer, engine.PerTool,
		},
	}
}

// TestBucket_IdentityIsStable checks that some buckets have the same identities as in earlier versions. If an identity
// changed, the limit would start counting from zero after an upgrade.
func TestBucket_IdentityIsStable(t *testing.T) {
	t.Parallel()
	own, capped := baseCase().bucket(t)
	if want := "EYz0Im8L0Ma5YKsDKzJakDDW1-iJlg9NKTOpD_OZpqg"; own != want {
		t.Errorf("bucket = %s, want %s", own, want)
	}
	if want := "JfoZfL4QZTKd0dj2kGoPlcphirr7X7avDuohcX7c-jQ"; capped != want {
		t.Errorf("bucket of the cap = %s, want %s", capped, want)
	}
}

func TestBucket_ChangesWithEveryPart(t *testing.T) {
	t.Parallel()
	changes := map[string]func(*bucketCase){
		"nothing":  func(*bucketCase) {},
		"document": func(c *bucketCase) { c.Document = "e" },
		"rule":     func(c *bucketCase) { c.Rule = "q" },
		"window":   func(c *bucketCase) { c.Window++ },
		"per":      func(c *bucketCase) { c.Per = c.Per[1:] },
		"server":   func(c *bucketCase) { c.Server = "z" },
		"tool":     func(c *bucketCase) { c.Tool = "z" },
		"tenant":   func(c *bucketCase) { c.Tenant = "acme" },
		"subject":  func(c *bucketCase) { c.Name = "ben" },
		"agent":    func(c *bucketCase) { c.Agent = "ci" },
		"session":  func(c *bucketCase) { c.Session = "s2" },
		"run":      func(c *bucketCase) { c.Run = "s1" }, // a run with the same name as the session
		"neither":  func(c *bucketCase) { c.Session = "" },
	}
	seen := make(map[string]string)
	for name, change := range changes {
		c := baseCase()
		change(&c)
		own, capped := c.bucket(t)
		if len(own) != 43 || own == capped {
			t.Errorf("changing %s: bucket %q, cap %q", name, own, capped)
		}
		if earlier, taken := seen[own]; taken {
			t.Errorf("changing %s gives the bucket of changing %s", name, earlier)
		}
		seen[own] = name
	}
	same := map[string]func(*bucketCase){
		"max":              func(c *bucketCase) { c.max = 999 },
		"default":          func(c *bucketCase) { c.defaults = engine.DefaultAllow },
		"the order of per": func(c *bucketCase) { c.Per = []engine.Dimension{6, 5, 4, 3, 2, 1} },
	}
	for name, change := range same {
		c := baseCase()
		change(&c)
		if own, _ := c.bucket(t); seen[own] != "nothing" {
			t.Errorf("changing %s refills the limit", name)
		}
	}
}

func TestBucket_CapIsSharedOnlyByTheSessionsOfAPrincipal(t *testing.T) {
	t.Parallel()
	_, want := baseCase().bucket(t)
	for _, c := range []bucketCase{baseCase(), baseCase(), baseCase()} {
		c.Session, c.Run = "", "r"
		if _, got := c.bucket(t); got != want {
			t.Error("a new run escapes the cap")
		}
	}
	c := baseCase()
	c.Name = "ben"
	if _, got := c.bucket(t); got == want {
		t.Error("two principals share a cap")
	}
}

// TestBucket_DiffersWhenAPartDiffers checks that two calls have equal buckets only if all parts are equal. For example,
// the parts "a:b" and "c" must not give the same bucket as "a" and "b:c".
func TestBucket_DiffersWhenAPartDiffers(t *testing.T) {
	t.Parallel()
	text := rapid.StringOfN(rapid.SampledFrom([]rune("a:\x00\x01")), 0, 3, -1)
	some := rapid.StringOfN(rapid.SampledFrom([]rune("a:\x00\x01")), 1, 3, -1)
	draw := func(t *rapid.T) bucketCase {
		c := baseCase()
		c.Document = rapid.SampledFrom([]string{"a", "aa", "a.a"}).Draw(t, "document")
		c.Rule = rapid.SampledFrom([]string{"a", "aa", "a.a"}).Draw(t, "rule")
		c.Server = rapid.SampledFrom([]string{"a", "aa", "-"}).Draw(t, "server")
		c.Tool = rapid.SampledFrom([]string{"a", "aa", "-"}).Draw(t, "tool")
		c.Tenant, c.Name = some.Draw(t, "tenant"), some.Draw(t, "name")
		c.Agent, c.Session, c.Run = text.Draw(t, "agent"), text.Draw(t, "session"), text.Draw(t, "run")
		return c
	}
	identity := func(c bucketCase) [8]string {
		key := "run"
		value := c.Run
		if value == "" {
			key, value = "session", c.Session
		}
		return [8]string{c.Document, c.Rule, c.Server, c.Tool, c.Tenant, c.Name, c.Agent, key + "\xff" + value}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		if rapid.Bool().Draw(t, "near") { // moves a border between two parts
			b = a
			joined := a.Name + a.Agent
			cut := rapid.IntRange(1, len(joined)).Draw(t, "cut")
			b.Name, b.Agent = joined[:cut], joined[cut:]
		}
		one, _ := a.bucket(t)
		two, _ := b.bucket(t)
		if same := identity(a) == identity(b); same != (one == two) {
			t.Fatalf("%+v and %+v: equal parts %t, equal buckets %t", a, b, same, one == two)
		}
	})
}

// TestBucket_DiffersWhenTheSessionDiffers checks limits per session. Two calls must have equal buckets only if both
// their principals and their sessions are equal.
func TestBucket_DiffersWhenTheSessionDiffers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		joined := rapid.StringOfN(rapid.SampledFrom([]rune("a:\x00\x01\x02")), 2, 5, -1).Draw(t, "principal and session")
		draw := func() bucketCase {
			c := baseCase()
			c.Per = []engine.Dimension{engine.PerSession}
			cut := rapid.IntRange(1, len(joined)).Draw(t, "cut")
			c.Name, c.Session, c.Run = joined[:cut], joined[cut:], ""
			if rapid.Bool().Draw(t, "run") {
				c.Session, c.Run = c.Run, c.Session
			}
			return c
		}
		a, b := draw(), draw()
		one, _ := a.bucket(t)
		two, _ := b.bucket(t)
		same := a.Name == b.Name && a.Session == b.Session && a.Run == b.Run
		if same != (one == two) {
			t.Fatalf("%q, session %q, run %q and %q, session %q, run %q: equal buckets %t",
				a.Name, a.Session, a.Run, b.Name, b.Session, b.Run, one == two)
		}
	})
}

// Case I6. TestBucket_PerOwnerIsSharedByAllPrincipalsOfAPerson checks that a person shares one bucket with all
// principals that work for this person: agents with and without a delegation chain, agents of agents, and tokens with
// that owner.
func TestBucket_PerOwnerIsSharedByAllPrincipalsOfAPerson(t *testing.T) {
	t.Parallel()
	set, err := engine.Compile([]engine.Document{{Name: "d", Rules: []engine.Rule{{
		Name: "r", Action: engine.ActionAllow, Limits: []engine.RateLimit{{Max: 3, Window: time.Minute, Per: []engine.Dimension{engine.PerOwner, engine.PerTool}}},
	}}}}, options)
	if err != nil {
		t.Fatal(err)
	}
	buckets := func(tool string, chain ...engine.Principal) (out []string) {
		for _, l := range set.Decide(engine.Call{Facts: callable, Server: "s", Tool: tool, Subject: engine.Subject{Caller: chain[0], Chain: chain[1:]}}).Limits {
			out = append(out, l.Bucket)
		}
		return out
	}
	of := func(tenant, name, owner string) engine.Principal {
		return engine.Principal{Tenant: tenant, Name: name, Owner: owner}
	}
	olga := of("acme", "olga", "")
	want := buckets("t", olga)
	for what, chain := range map[string][]engine.Principal{
		"an agent of the person":         {of("acme", "agent:acme/1", "olga")},
		"another one":                    {of("acme", "agent:acme/2", "olga")},
		"a token with that owner":        {of("acme", "bot", "olga")},
		"an agent of the token":          {of("acme", "agent:acme/3", "olga"), of("acme", "bot", "olga")},
		"an agent that an agent made":    {of("acme", "agent:acme/4", "olga"), of("acme", "agent:acme/3", "olga"), of("acme", "bot", "olga")},
		"the person, named as its owner": {of("acme", "olga", "olga")},
	} {
		if got := buckets("t", chain...); !slices.Equal(got, want) {
			t.Errorf("%s counts in %v, want %v", what, got, want)
		}
	}
	for what, got := range map[string][]string{
		"another person":                   buckets("t", of("acme", "ben", "")),
		"an agent of another person":       buckets("t", of("acme", "agent:acme/5", "ben")),
		"a person of that name elsewhere":  buckets("t", of("other", "olga", "")),
		"another tool":                     buckets("u", olga),
		"a principal called as the agents": buckets("t", of("acme", "bot", "")),
	} {
		if slices.Contains(got, want[0]) {
			t.Errorf("%s counts in the bucket of olga", what)
		}
	}
	if got := buckets("t", of("acme", "agent:acme/6", "ben"), olga); len(got) != 2 || !slices.Contains(got, want[0]) {
		t.Errorf("an agent of ben with olga in its chain counts in %v", got)
	}
}
