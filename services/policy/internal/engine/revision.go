package engine

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
)

// A canonicalForm is an encoding of a rule or of documents, for computing a digest. Equal content has the same
// encoding, because each part is preceded by its length and lists are sorted.
type canonicalForm []byte

// These are the versions of the canonical forms. A new version changes all digests of the form.
const (
	ruleFormat     = "sluice.rule.v1"
	revisionFormat = "sluice.revision.v1"
)

func (c *canonicalForm) text(s string) { *c = appendPart(*c, s) }

func (c *canonicalForm) number(n int64) { c.text(strconv.FormatInt(n, 10)) }

func (c *canonicalForm) list(list []string) {
	c.number(int64(len(list)))
	for _, s := range slices.Sorted(slices.Values(list)) {
		c.text(s)
	}
}

// digestOf returns the SHA-256 digest of a rule's content, including the name and the server pattern of its document.
func digestOf(d *Document, r *Rule) [32]byte {
	var c canonicalForm
	for _, s := range []string{ruleFormat, d.Name, d.Server, r.label(), r.Action.String(), r.Reason} {
		c.text(s)
	}
	for _, key := range r.Match.keys() {
		c.list(key.patterns)
	}
	c.properties(&r.Match)
	limits := slices.SortedFunc(slices.Values(r.Limits), func(a, b RateLimit) int {
		return cmp.Or(cmp.Compare(a.Window, b.Window), slices.Compare(a.per(), b.per()))
	})
	c.number(int64(len(limits)))
	for _, l := range limits {
		c.number(l.Max)
		c.number(int64(l.Window))
		c.number(int64(len(l.Per)))
		for _, d := range l.per() {
			c.text(d.String())
		}
	}
	c.list(r.Approvers)
	c.number(int64(max(1, r.Quorum)))
	c.options(r)
	return sha256.Sum256(c)
}

// properties appends the methods, names and tool properties in m. It appends only the parts that are set, each with its
// name. Therefore adding a part to the policy language does not change the digests of rules without this part.
func (c *canonicalForm) properties(m *Match) {
	for _, key := range []struct {
		name   string
		values []string
	}{{"match.method", m.Method}, {"match.prompt", m.Prompt}, {"match.uri", m.URI}, {"match.category", m.Category}, {"match.risk", m.Risk}, {"match.tags", m.Tags}, {"match.annotations", m.hintTexts()}} {
		if len(key.values) > 0 {
			c.text(key.name)
			c.list(key.values)
		}
	}
}

// options appends the optional parts of a rule. It appends only the parts that are set, each with its name. Therefore
// adding a part to the policy language does not change the digests of rules without this part.
func (c *canonicalForm) options(r *Rule) {
	for _, option := range []struct {
		name  string
		value int64
	}{
		{"decide_within", int64(r.DecideWithin)},
		{"execute_within", int64(r.ExecuteWithin)},
		{"self_confirm", flag(r.SelfConfirm)},
		{"grant.calls", r.Grant.Calls},
		{"grant.within", int64(r.Grant.Within)},
		{"grant.critical", flag(r.Grant.Critical)},
		{"grant.extra_args", flag(r.Grant.ExtraArgs)},
		{"idempotent", flag(r.Idempotent)},
		{"timeout", int64(r.Timeout)},
		{"strict", flag(r.Strict)},
		{"record", flag(r.Record)},
		{"approve_with.max_age", int64(r.ApproveWith.MaxAge)},
	} {
		if option.value != 0 {
			c.text(option.name)
			c.number(option.value)
		}
	}
	if len(r.Redactions) > 0 {
		c.text("redact")
		c.list(redactionTexts(r.Redactions))
	}
	if len(r.NeedsScope) > 0 {
		c.text("needs_scope")
		c.list(r.NeedsScope)
	}
	if len(r.ApproveWith.ACR) > 0 {
		c.text("approve_with.acr")
		c.list(r.ApproveWith.ACR)
	}
	if r.Grant.Where != "" {
		c.text("grant.where")
		c.text(r.Grant.Where)
	}
	if r.When != "" {
		c.text("when")
		c.text(r.When)
		c.number(flag(r.ExtraArgs))
		c.number(flag(r.Otherwise))
	}
}

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// revisionOf returns the SHA-256 digest of the documents and their rules, in hexadecimal. Both slices must be sorted.
func revisionOf(documents []Document, rules []*rule) string {
	var c canonicalForm
	c.text(revisionFormat)
	c.number(int64(len(documents)))
	for i := range documents {
		d := &documents[i]
		for _, s := range []string{d.Name, d.Server, d.Default.String()} {
			c.text(s)
		}
	}
	c.number(int64(len(rules)))
	for _, r := range rules {
		c = append(c, r.digest[:]...)
	}
	sum := sha256.Sum256(c)
	return hex.EncodeToString(sum[:])
}
