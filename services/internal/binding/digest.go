package binding

import (
	"crypto/sha256"
	"fmt"
	"strconv"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/canonical"
)

// format names the version of the digest's fields.
const format = "sluice-approval-1"

// defaultMethod is what an empty method of a call means.
const defaultMethod = "tools/call"

// Digest is the identity of a call and its caller: calls with the same digest
// have the same approval, any other has another. Its zero value belongs to no call.
type Digest [sha256.Size]byte

// Bind returns the digest of a call of p, and the call as it is kept and sent: its
// params have lost what changes from one sending to the next and are otherwise
// the text that was judged. The call given stays as it is. An error means that
// params are no JSON object, or have a repeated key or broken text.
func Bind(p *identityv1.Principal, call *approvalv1.BoundCall) (Digest, string, error) {
	params, err := strip(call.GetCall().GetParamsJson())
	if err != nil {
		return Digest{}, "", fmt.Errorf("read params: %w", err)
	}
	text, err := canonical.Object(params)
	if err != nil {
		return Digest{}, "", fmt.Errorf("read params: %w", err)
	}
	fields := append([]string{format}, who(p)...)
	fields = append(fields, strconv.Itoa(len(p.GetChain())))
	for _, of := range p.GetChain() {
		fields = append(fields, who(of)...)
	}
	fields = append(fields, call.GetCall().GetServer(), call.GetServerIdentity(), methodOf(call), call.GetCall().GetName(),
		string(call.GetCall().GetDefinitionDigest()), text)
	return canonical.Sum(fields...), params, nil
}

// Alike returns the digest that a call of p has whatever its tool's definition and its
// server's identity are: [Bind]'s without both.
func Alike(p *identityv1.Principal, call *policyv1.Call) (Digest, error) {
	digest, _, err := Bind(p, &approvalv1.BoundCall{Call: &policyv1.Call{
		Method: call.GetMethod(), Server: call.GetServer(), Name: call.GetName(), ParamsJson: call.GetParamsJson(),
	}})
	return digest, err
}

// Bare returns the digest that a call of p has whatever it carries beside what it asks
// for: [Bind]'s, of a tool's call and a prompt with the arguments alone, of a resource with its URI,
// of any other without its `_meta`. Params are as Bind returns them.
func Bare(p *identityv1.Principal, call *approvalv1.BoundCall) (Digest, error) {
	params, err := bare(methodOf(call), call.GetCall().GetParamsJson())
	if err != nil {
		return Digest{}, fmt.Errorf("read params: %w", err)
	}
	digest, _, err := Bind(p, &approvalv1.BoundCall{ServerIdentity: call.GetServerIdentity(), Call: &policyv1.Call{
		Method: methodOf(call), Server: call.GetCall().GetServer(), Name: call.GetCall().GetName(),
		DefinitionDigest: call.GetCall().GetDefinitionDigest(), ParamsJson: params,
	}})
	return digest, err
}

func methodOf(call *approvalv1.BoundCall) string {
	if m := call.GetCall().GetMethod(); m != "" {
		return m
	}
	return defaultMethod
}

func who(p *identityv1.Principal) []string {
	return []string{p.GetTenant(), p.GetSubject(), p.GetAgent()}
}
