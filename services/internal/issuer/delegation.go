package issuer

import (
	"errors"
	"net/url"
	"strings"

	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/valuepath"
)

// ActorClaim is the JSON Pointer of the claim that identifies the current actor of a token (RFC 8693, section 4.1).
const ActorClaim = "/act/sub"

const (
	// maxPriorActors is the maximum number of prior actors, and therefore the maximum length of a delegation chain.
	maxPriorActors = 4
	// maxPrincipal is the maximum size of a principal with prior actors, in bytes. The principal's assertion must fit into
	// the headers of a call between services.
	maxPrincipal = 40 << 10
)

// actor is the party that a claim `act` identifies.
type actor struct {
	// sub is the claim `sub` within the claim `act`.
	sub string
	// agent is the name of the agent.
	agent string
	// subject is the subject of the actor when it acts for itself.
	subject string
}

// parseDelegation parses the part of an issuer's configuration that says whether actors are accepted. If they are
// accepted, the subject template also maps actors. The template may then contain only `/sub`, because a claim `act`
// often has no other claim that identifies the actor.
func (i *issuer) parseDelegation(from *identityv1.Issuer) error {
	i.delegation = from.GetDelegation()
	switch {
	case !i.delegation:
		return nil
	case !UsesOnly(from.GetSubject(), "/sub"):
		return errors.New("with delegation, its subject may contain no claim except {/sub}")
	case from.GetOwner() != "" && from.GetOwner() != from.GetSubject():
		return errors.New("with delegation, its owner must be the subject")
	case from.GetAgentClaim() == "":
		i.agent.namedByClaim = true
	case from.GetAgentClaim() != ActorClaim:
		return errors.New("with delegation, the claim of its agents must be " + ActorClaim)
	}
	return nil
}

// setActors maps the claim `act` of a token in which an agent acts for a person. p is the principal of the person. The
// current actor becomes the agent, the person becomes its owner, and the prior actors become its delegation chain. The
// chain can only restrict the caller, because policy must allow the call for each principal in the chain.
func (i *issuer) setActors(claims object, p *identityv1.Principal, t *trace) *Refusal {
	if claims["act"] == nil {
		return nil
	}
	actors, refusal := i.actorsOf(claims)
	if refusal != nil {
		return refusal
	}
	var chain []*identityv1.Principal
	var names []string
	for _, prior := range actors[1:] {
		behind := proto.CloneOf(p)
		if refusal := i.setActor(behind, prior); refusal != nil {
			return refusal
		}
		chain, names = append(chain, behind), append(names, behind.GetSubject())
	}
	if refusal := i.setActor(p, actors[0]); refusal != nil {
		return refusal
	}
	p.Chain = chain
	if size := proto.Size(p); size > maxPrincipal {
		return refuse(WrongClaim, "the groups and scopes of the token and its prior actors (nested claims act) have %d bytes, more than %d", size, maxPrincipal)
	}
	t.addf("actor", "the agent %s acts for %s, with the subject %s", p.GetAgent(), p.GetOwner(), p.GetSubject())
	if len(names) > 0 {
		t.addf("chain", "%s", strings.Join(names, ", "))
	}
	return nil
}

// setActor changes the principal of a person to that of an actor who acts for the person. The subject is different for
// each issuer, actor and person, because the name of the issuer and the escaped `sub` of the actor contain no `/`.
func (i *issuer) setActor(p *identityv1.Principal, a actor) *Refusal {
	p.Owner, p.Person, p.Actor, p.Agent = p.GetSubject(), p.GetSubject(), a.subject, a.agent
	p.Subject = principal.Delegate + i.name + "/" + url.PathEscape(a.sub) + "/" + p.GetOwner()
	if len(p.GetSubject()) > maxSubject {
		return refuse(WrongClaim, "the subject of an agent that acts for a person has %d bytes, more than %d", len(p.GetSubject()), maxSubject)
	}
	return i.addSubjectGroups(nil, p, nil)
}

// actorsOf returns the current actor, followed by the prior actors from the newest to the oldest.
func (i *issuer) actorsOf(claims object) ([]actor, *Refusal) {
	var out []actor
	for value := claims["act"]; value != nil; {
		pointer := strings.Repeat("/act", len(out)+1)
		if len(out) > maxPriorActors {
			return nil, refuse(WrongClaim, "the token has more than %d prior actors (nested claims act)", maxPriorActors)
		}
		act, ok := value.(map[string]any)
		if !ok {
			return nil, refuse(WrongClaim, "the token's claim %s is not an object", pointer)
		}
		one, refusal := i.actorOf(act, pointer)
		if refusal != nil {
			return nil, refusal
		}
		out, value = append(out, one), act["act"]
	}
	return out, nil
}

// actorOf returns the actor that a claim `act` identifies. Only the claims `iss` and `sub` within `act` identify the
// actor, so all other claims have no effect (RFC 8693, section 4.1).
func (i *issuer) actorOf(act object, pointer string) (out actor, refusal *Refusal) {
	if iss := act["iss"]; iss != nil && iss != i.url {
		return actor{}, refuse(WrongClaim, "the token's claim %s/iss is not the issuer of the token", pointer)
	}
	if out.sub, refusal = act.textAt(pointer+"/sub", valuepath.Path{"sub"}); refusal != nil {
		return actor{}, refusal
	}
	if out.subject, refusal = i.subject.execute(act); refusal != nil {
		return actor{}, refusal
	}
	if len(out.subject) > maxSubject || principal.IsReserved(out.sub) || principal.IsReserved(out.subject) {
		return actor{}, refuse(WrongClaim, "the token's claim %s/sub is longer than %d bytes, or begins with agent:, act: or system:, which only the mesh uses", pointer, maxSubject)
	}
	out.agent, refusal = i.agent.nameOf(pointer+"/sub", out.sub)
	return out, refusal
}
