package binding

import (
	"crypto/sha256"
	"fmt"
	"strconv"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// format and personFormat are versions of the list of fields that a digest covers. The version is the first of these
// fields. personFormat is used if the caller or a principal in its delegation chain has a person. All other calls use
// format, which versions without persons also use.
const (
	format       = "sluice-approval-1"
	personFormat = "sluice-approval-2"
)

// defaultMethod is the method of a call that does not specify a method.
const defaultMethod = "tools/call"

// Digest identifies a call and its caller. Two calls share an approval if and only if their digests are equal. The zero
// value belongs to no call.
type Digest [sha256.Size]byte

// Bind returns the digest of a call that p makes, and the call's params in the form in which they are stored and sent.
// This form omits the members that differ between repetitions of a call. All other bytes are unchanged. Bind does not
// modify its arguments. It returns an error if the params are not a JSON object, or if they contain a repeated key or
// invalid strings.
func Bind(p *identityv1.Principal, call *approvalv1.BoundCall) (Digest, string, error) {
	params, err := strip(call.GetCall().GetParamsJson())
	if err != nil {
		return Digest{}, "", fmt.Errorf("read params: %w", err)
	}
	text, err := canonicaljson.Object(params)
	if err != nil {
		return Digest{}, "", fmt.Errorf("read params: %w", err)
	}
	hasPerson := principal.HasPerson(p)
	fields := []string{format}
	if hasPerson {
		fields[0] = personFormat
	}
	fields = appendPrincipal(fields, p, hasPerson)
	fields = append(fields, strconv.Itoa(len(p.GetChain())))
	for _, of := range p.GetChain() {
		fields = appendPrincipal(fields, of, hasPerson)
	}
	fields = append(fields, call.GetCall().GetServer(), call.GetServerIdentity(), methodOf(call), call.GetCall().GetName(),
		string(call.GetCall().GetDefinitionDigest()), text)
	return canonicaljson.Sum(fields...), params, nil
}

// DigestIgnoringDefinition is like [Bind], but ignores the tool's definition and the server's identity.
func DigestIgnoringDefinition(p *identityv1.Principal, call *policyv1.Call) (Digest, error) {
	digest, _, err := Bind(p, &approvalv1.BoundCall{Call: &policyv1.Call{
		Method: call.GetMethod(), Server: call.GetServer(), Name: call.GetName(), ParamsJson: call.GetParamsJson(),
	}})
	return digest, err
}

// EssentialDigest is like [Bind], but covers only the essential part of the params. For a call to a tool or a prompt,
// that is the arguments. For a resource, it is the URI. For any other method, it is the params without `_meta`. The
// params must be the result of Bind.
func EssentialDigest(p *identityv1.Principal, call *approvalv1.BoundCall) (Digest, error) {
	params, err := keepEssential(methodOf(call), call.GetCall().GetParamsJson())
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

func appendPrincipal(fields []string, p *identityv1.Principal, withPerson bool) []string {
	fields = append(fields, p.GetTenant(), p.GetSubject(), p.GetAgent())
	if withPerson {
		fields = append(fields, p.GetPerson())
	}
	return fields
}
