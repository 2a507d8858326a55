package visibility

import (
	"slices"
	"strconv"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// AppendKey appends a key that is equal for all principals that the policy cannot distinguish on a server. The key
// contains no tokens or owners, because policy rules cannot match them. It contains no sessions or runs, because
// permissions cannot depend on them.
func AppendKey(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = appendJudged(AppendPart(dst, server), p)
	for _, behind := range p.GetChain() {
		dst = appendJudged(dst, behind)
	}
	return dst
}

// AppendCaller appends a key for a caller on a server. The key does not depend on the caller's groups.
func AppendCaller(dst []byte, p *identityv1.Principal, server string) []byte {
	dst = AppendPart(dst, server)
	for _, who := range slices.Concat([]*identityv1.Principal{p}, p.GetChain()) {
		dst = AppendPart(AppendPart(AppendPart(dst, who.GetTenant()), who.GetSubject()), who.GetAgent())
	}
	return dst
}

// appendJudged appends the fields of a principal to which policy rules can refer.
func appendJudged(dst []byte, p *identityv1.Principal) []byte {
	dst = AppendPart(dst, p.GetTenant())
	dst = AppendPart(dst, p.GetSubject())
	dst = AppendPart(dst, p.GetAgent())
	dst = appendParts(dst, p.GetGroups())
	dst = AppendPart(dst, p.GetIssuer())
	dst = AppendPart(dst, p.GetClient())
	return appendParts(dst, p.GetScopes())
}

// appendParts appends the number of texts and then each text.
func appendParts(dst []byte, texts []string) []byte {
	dst = append(strconv.AppendInt(dst, int64(len(texts)), 10), ':')
	for _, text := range texts {
		dst = AppendPart(dst, text)
	}
	return dst
}

// AppendPart appends the length and the bytes of a text. Because of the length, different sequences of texts have
// different keys.
func AppendPart[T string | []byte](dst []byte, text T) []byte {
	dst = strconv.AppendInt(dst, int64(len(text)), 10)
	dst = append(dst, ':')
	return append(dst, text...)
}
