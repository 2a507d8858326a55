package binding

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"strconv"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
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
	canonical, err := canonical.Object(params)
	if err != nil {
		return Digest{}, "", fmt.Errorf("read params: %w", err)
	}
	f := fields{sha256.New()}
	f.add(format)
	f.addWho(p)
	f.add(strconv.Itoa(len(p.GetChain())))
	for _, of := range p.GetChain() {
		f.addWho(of)
	}
	f.add(call.GetCall().GetServer())
	f.add(call.GetServerIdentity())
	f.add(methodOf(call))
	f.add(call.GetCall().GetName())
	f.add(string(call.GetCall().GetDefinitionDigest()))
	f.add(canonical)
	return Digest(f.Sum(nil)), params, nil
}

func methodOf(call *approvalv1.BoundCall) string {
	if m := call.GetCall().GetMethod(); m != "" {
		return m
	}
	return defaultMethod
}

// fields hashes fields so that no two lists of them read the same: each is its
// length and then its bytes.
type fields struct{ hash.Hash }

func (f fields) add(text string) {
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(text)))
	_, _ = f.Write(size[:])      // a hash takes everything
	_, _ = f.Write([]byte(text)) // as above
}

func (f fields) addWho(p *identityv1.Principal) {
	f.add(p.GetTenant())
	f.add(p.GetSubject())
	f.add(p.GetAgent())
}
