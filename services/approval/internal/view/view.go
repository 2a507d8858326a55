package view

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// These are the errors of [View.Part]. Use errors.Is to test for them.
var (
	ErrChanged = errors.New("the view has changed: begin again at offset 0")
	ErrOffset  = errors.New("no part of the view begins at this offset")
)

// maxPartBytes is the maximum length of the params in one part, in bytes.
const maxPartBytes = 1 << 20

// Facts contains the facts in a view that are not stored in the record.
type Facts struct {
	// Previous is the newest earlier approval of the same caller and tool whose call ran or might have run. It is nil if
	// there is no such approval.
	Previous *lifecycle.Record
	// Unsettled is the id of an approval for an equal call, if that call's outcome is unknown. Otherwise it is empty.
	Unsettled string
}

// View is a complete view. It is immutable.
type View struct {
	whole  *approvalv1.View
	params string
}

// Draw renders the view of a record. The record's params must still be stored.
func Draw(r *lifecycle.Record, facts Facts) (*View, error) {
	hidden := redactedPointers(r.Decision)
	params, err := renderParams(r.Call.GetCall().GetParamsJson(), hidden)
	if err != nil {
		return nil, err
	}
	a := r.Approval
	who := a.GetRequester()
	v := &approvalv1.View{
		ApprovalId: a.GetId(), Subject: safetext.Escape(who.GetSubject()), Agent: safetext.Escape(who.GetAgent()), Owner: safetext.Escape(who.GetOwner()), Person: safetext.Escape(principal.ConnectionsOf(who).Subject),
		Server: safetext.Escape(a.GetServer()), ServerIdentity: safetext.Escape(a.GetServerIdentity()), Method: safetext.Escape(a.GetMethod()), Name: safetext.Escape(a.GetName()),
		DefinitionDigest: a.GetDefinitionDigest(), Classification: classification(r.Decision), Rule: a.GetRule(), Message: safetext.Escape(a.GetMessage()),
		Terms: a.GetTerms(), DecideBefore: a.GetDecideBefore(), Redacted: escapeAll(hidden),
		Params: params, ParamsTotal: int64(len(params)),
	}
	for _, of := range who.GetChain() {
		v.Chain = append(v.Chain, safetext.Escape(of.GetSubject()))
	}
	v.Warnings = warnings(r, v, facts.Unsettled)
	if v.Digest, err = digest(v); err != nil {
		return nil, err
	}
	// The digest does not cover the comparison with the previous call. The comparison changes whenever another call to the
	// tool has run. If the digest covered the comparison, this change would invalidate votes on a view of the same call.
	if err := addChanges(v, r, facts.Previous, hidden); err != nil {
		return nil, err
	}
	v.Params = "" // the digest covers the params
	all, err := digest(v)
	if err != nil {
		return nil, err
	}
	v.Version = hex.EncodeToString(all[:8])
	return &View{whole: v, params: params}, nil
}

// classification returns the class of the tool in the catalog at the time when the policy service required approval. It
// returns nil if the catalog did not contain the tool.
func classification(d *policyv1.Decision) *policyv1.Classification {
	c := d.GetToolClass()
	if c == nil {
		return nil
	}
	return &policyv1.Classification{Category: c.GetCategory(), Risk: c.GetRisk(), Tags: c.GetTags()}
}

func addChanges(v *approvalv1.View, r, before *lifecycle.Record, hidden []string) error {
	if before == nil || before.Approval.GetMethod() != r.Approval.GetMethod() || before.Call.GetCall().GetParamsJson() == "" {
		return nil
	}
	found, total, err := diffParams(before.Call.GetCall().GetParamsJson(), r.Call.GetCall().GetParamsJson(), hidden)
	if errors.Is(err, errTooLarge) {
		return nil // an incomplete comparison would be misleading
	}
	v.PreviousApprovalId, v.Changes, v.ChangesTotal = before.Approval.GetId(), found, total
	return err
}

// digest returns a digest of all fields of v that are set when digest is called.
func digest(v *approvalv1.View) ([]byte, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("draw the view: %w", err)
	}
	digest := sha256.Sum256(raw)
	return digest[:], nil
}

// Digest returns the digest that a vote to approve must contain.
func (v *View) Digest() []byte { return v.whole.GetDigest() }

// Part returns the part of the view that begins at the given offset. For an offset above 0, version must be the version
// of the first part. The error is [ErrChanged] or [ErrOffset].
func (v *View) Part(offset int64, version string) (*approvalv1.View, error) {
	if offset > 0 && version != v.whole.GetVersion() {
		return nil, ErrChanged
	}
	begin := int64(0)
	for {
		end := v.partEnd(begin)
		if begin == offset {
			part := proto.CloneOf(v.whole)
			part.Params, part.ParamsOffset = v.params[begin:end], begin
			if end < int64(len(v.params)) {
				part.NextOffset, part.Digest = end, nil
			}
			return part, nil
		}
		if end >= int64(len(v.params)) || begin > offset {
			return nil, ErrOffset
		}
		begin = end
	}
}

// partEnd returns the end of the part that begins at the given offset. The end is always at a character boundary.
func (v *View) partEnd(begin int64) int64 {
	end := begin + maxPartBytes
	if end >= int64(len(v.params)) {
		return int64(len(v.params))
	}
	for !utf8.RuneStart(v.params[end]) {
		end--
	}
	return end
}

// warnings returns sentences that warn a person before a vote.
func warnings(r *lifecycle.Record, v *approvalv1.View, unsettled string) (out []string) {
	a := r.Approval
	if unsettled != "" {
		out = append(out, "An equal call, that of approval "+unsettled+", was approved before, and its outcome is not known: it may have run already.")
	}
	for _, text := range []string{a.GetRequester().GetSubject(), a.GetRequester().GetAgent(), a.GetName(), a.GetMessage()} {
		if safetext.Escape(text) != text {
			out = append(out, "The names above contain invisible characters; they are shown as escapes.")
			break
		}
	}
	if hasInvisible(r.Call.GetCall().GetParamsJson()) {
		out = append(out, "The arguments contain invisible characters; they are shown as escapes.")
	}
	if g := a.GetTerms().GetGrant(); g != nil {
		out = append(out, grantWarnings(g)...)
	}
	if len(v.GetRedacted()) > 0 {
		out = append(out, "Values that a rule redacts are approved unseen.")
	}
	ofTool := a.GetMethod() == "tools/call"
	if ofTool && len(a.GetDefinitionDigest()) == 0 {
		out = append(out, "The server does not list this tool: only its name is known.")
	}
	if a.GetName() != r.Call.GetCall().GetName() {
		out = append(out, "The name above is cut: the arguments show it in full.")
	}
	if ofTool && v.GetClassification() == nil {
		out = append(out, "The catalog does not know what the tool does: assume the worst.")
	}
	return out
}

// grantWarnings returns the warnings about a grant. These are the number of calls that the grant allows, and one line
// for each of its conditions.
func grantWarnings(g *policyv1.Grant) []string {
	calls := fmt.Sprintf("This allows up to %d calls within %s", g.GetCalls(), g.GetWithin().AsDuration())
	if len(g.GetWhere()) == 0 {
		return []string{calls + ", not only this one."}
	}
	out := []string{calls + " that meet these conditions, not only this one."}
	for _, where := range g.GetWhere() {
		out = append(out, "Each such call meets: "+safetext.Escape(where))
	}
	return out
}

// hasInvisible reports whether a key or a string in params contains an invisible character other than a line break or a
// tab.
func hasInvisible(params string) bool {
	dec := jsontext.NewDecoder(bytes.NewBufferString(params))
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return !errors.Is(err, io.EOF)
		}
		if token.Kind() == '"' && strings.ContainsFunc(token.String(), func(r rune) bool { return safetext.IsHidden(r) && !strings.ContainsRune("\n\r\t", r) }) {
			return true
		}
	}
}

// redactedPointers returns the JSON Pointers of the arguments that policy rules redact in views for approvers. It skips
// redactions of results, and redactions that the gateway made before it requested the approval.
func redactedPointers(d *policyv1.Decision) (out []string) {
	for _, r := range d.GetRedactions() {
		if r.GetPath() != "" && r.GetTarget() == policyv1.RedactionTarget_REDACTION_TARGET_UNSPECIFIED {
			out = append(out, r.GetPath())
		}
	}
	slices.Sort(out)
	return out
}

func escapeAll(texts []string) []string {
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = safetext.Escape(t)
	}
	return out
}
