package classify

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// A form is a pattern that matches texts that instruct the model instead of describing the tool.
type form struct {
	// triggers contains words. Every matching text contains at least one of them. For speed, the expression is tried only
	// near these words.
	triggers []string
	// words returns the compiled expression.
	words func() *regexp.Regexp
	// raw is true if the expression is matched against the original text in lower case instead of the folded text.
	raw     bool
	meaning string
}

// window is the maximum distance in bytes between a trigger word and the start or end of a match.
const window = 256

// find returns the start and end of the form's first match in a text, or nil if there is no match. It also returns the
// number of bytes that the expression was tried on.
func (f *form) find(text string) (at []int, tried int) {
	if f.raw {
		if !slices.ContainsFunc(f.triggers, func(word string) bool { return strings.Contains(text, word) }) {
			return nil, 0
		}
		return f.words().FindStringIndex(text), len(text)
	}
	var around [][2]int
	for _, word := range f.triggers {
		for from := 0; ; {
			i := strings.Index(text[from:], word)
			if i < 0 {
				break
			}
			begin, end := max(0, from+i-window), min(len(text), from+i+len(word)+window)
			if n := len(around); n > 0 && begin >= around[n-1][0] && begin <= around[n-1][1] {
				around[n-1][1] = end
			} else {
				around = append(around, [2]int{begin, end})
			}
			from += i + len(word)
		}
	}
	slices.SortFunc(around, func(a, b [2]int) int { return a[0] - b[0] })
	done := 0
	for _, w := range around {
		begin, end := w[0], w[1]
		if end <= done {
			continue
		}
		begin = max(begin, done-window) // a match can begin in the previous window
		for begin = max(begin, 0); begin > 0 && text[begin-1] != ' ' && !utf8.RuneStart(text[begin]); begin-- {
		}
		for ; end < len(text) && !utf8.RuneStart(text[end]); end++ {
		}
		tried += end - begin
		done = end
		if at := f.words().FindStringIndex(text[begin:end]); at != nil {
			return []int{at[0] + begin, at[1] + begin}, tried
		}
	}
	return nil, tried
}

// upTo3 and upTo6 match up to three and up to six words in a sentence.
const (
	upTo3 = `(?:[^\s.!?;:]+ ){0,3}`
	upTo6 = `(?:[^\s.!?;:]+ ){0,6}`
)

// These meanings explain matches of forms in all languages.
const (
	overrules = "it tells its reader which instructions to follow"
	conceals  = "it tells its reader what not to tell people"
	goesFirst = "it tells its reader how to use other tools or servers"
	wantsKeys = "it asks for a place where secrets are kept"
	wantsTalk = "it asks for what its reader was told, or for secrets"
	consents  = "it says that people need not be asked"
	redirects = "it tells its reader where to send other things"
	addresses = "it speaks to the model"
)

// newForm returns a form for folded texts. any contains the trigger words, separated by |.
func newForm(meaning, any, expression string) form {
	return form{triggers: strings.Split(any, "|"), words: compiled(expression), meaning: meaning}
}

// compiled returns a function that compiles the expression on its first call. Compiling all expressions takes 10 ms.
func compiled(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// steering contains the forms for English texts and for markup. They must not match harmless sentences in the
// definitions of real tools, such as "you must call X first" and "use this tool before Y".
var steering = []form{
	newForm(overrules, "instruction|rule|guideline|directive|prompt|message|guardrail|restriction|safety|policy|policies|pretend|precedence|stop following",
		`\b(?:ignor|disregard|forget|overrid|bypass|discard|obey)(?:e|es|s|ing)? `+upTo3+`(?:your|previous|prior|earlier|above|preceding|former|all|any|other|system|safety|users?) ?`+
			upTo3+`(?:instructions?|rules|guidelines?|directives?|prompts?|messages|guardrails|restrictions|safety|polic(?:y|ies))\b|\b(?:stop following|takes? precedence over|pretend (?:that|to)) (?:[^\s.!?;:]+ ){0,4}(?:instructions?|rules|guidelines|user|system|failed|this tool)\b`),
	newForm(overrules, "forget|ignore|disregard",
		`\b(?:forget|ignore|disregard) (?:everything|anything|all|what|the above|the previous) `+upTo3+`(?:you|above|before|said|told|and)\b|\b(?:disregard|ignore) the above\b`),
	newForm(overrules, "your |you are now|from now|from here|developer mode|obey",
		`\byour (?:new|real|true|actual|only) (?:tasks?|goal|instructions?|job|purpose|objective|mission|role)\b|\byou are now (?:in|an?|the)\b|`+
			`\bfrom (?:now|here) on,? `+upTo3+`(?:you|always|every|all|must|obey|follow)\b|\bdeveloper mode\b|\bobey (?:the|this|only|my)\b`),
	newForm(conceals, "tell|mention|inform|notify|reveal|disclos|show|alert|explain|discuss|do not let|bring|so that no",
		`\bdo not let the (?:user|human|person|operator) |\bnever bring (?:it|this|that) up\b|\bso that (?:nobody|no one) (?:sees|knows|notices|finds)|\bnot mention this\b|`+
			`\b(?:do not|never|must not|should not|may not|without|not to|avoid|refrain from|nor) (?:[^\s.!?;:]+ ){0,1}?(?:tell|telling|mention|mentioning|inform|informing|notify|notifying|reveal|revealing|disclose|disclosing|show|showing|alert|alerting|explain|explaining|discuss|discussing) `+
			`(?:[^\s.!?;:]+ ){0,6}(?:users?|humans?|persons?|operators?|anyone|anybody|customers?|owners?|instructions?|answer|reply)\b`),
	newForm(conceals, "user|human|person|operator|secret|hide|covert|silently|between us|confidential",
		`\b(?:user|human|person|operator)s? (?:must|should|need|needs|may|does|do|will) (?:not|never) (?:[^\s.!?;:]+ ){0,2}(?:know|see|notice|be (?:told|aware|informed|notified|shown))\b|`+
			`\bkeep (?:this|it|that) (?:a )?(?:secret|hidden|confidential|between us)\b|\bhide `+upTo6+`from (?:the |your )?(?:user|human|person|operator)|\b(?:secretly|covertly)\b|\bcontinue silently\b`),
	newForm(goesFirst, "other|another|each|every|server",
		`\b(?:before|prior to|after|instead of|never use|not use|replaces?) (?:[^\s.!?;:]+ ){0,5}(?:any|every|all|each) (?:other|another) (?:tools?|functions?|servers?|actions?|calls?|answers?)\b|`+
			`\b(?:tools?|functions?) (?:of|from|on) (?:any |all |the |an)?(?: ?other)? ?(?:mcp )?servers?\b|\b(?:another|any other|all other|every other) (?:mcp )?servers?\b|\b(?:of|from) the [a-z0-9]+ (?:mcp )?server (?:first|and|before|with)\b|\bif (?:the|a) [a-z0-9]+ (?:mcp )?server is (?:present|available|connected|installed|there)\b`),
	newForm(wantsKeys, "ssh|id |.aws|.env|/etc/|.netrc|.npmrc|.git|.kube|.docker|.gnupg|.pgpass|wallet|mcp.json|desktop config|history|hosts|keys",
		`(?:^|[^a-z])(?:`+accessWords+`)[^a-z].{0,60}(?:`+secretLocations+`)|(?:`+secretLocations+`).{0,60}(?:`+accessWords+`)`),
	newForm(wantsTalk, "conversation|chat|prompt|messages|environment|private key|password|credential|key|secret|token",
		`\b(?:pass|include|including|send|provide|append|attach|put|copy|paste|supply|insert) `+upTo6+`(?:conversation (?:so|history|log|context)|chat history|system prompt|previous messages|prior messages|(?:your|all) environment variables|environment variables of your|users? (?:s )?(?:private key|passwords?|credentials|api keys?|secrets?)|(?:all|your) (?:hidden |system )?(?:api keys?|credentials|secrets|passwords|instructions|prompt))\b|`+
			`\b(?:full|entire|whole|complete) (?:conversation|chat)\b|\b(?:collect|gather|steal|send) (?:all|every|any|each) (?:[a-z]+ ){0,2}(?:api keys?|credentials?|secrets?|passwords?)\b|\btools (?:[^\s.!?;:]+ ){0,4}you have called\b|\ball (?:of the |the )?(?:previous |prior )?messages (?:exchanged|of this|in this|so far)\b`),
	newForm(consents, "already|confirmation|approval|permission|consent|asking|ask ",
		`\buser (?:has |have )?already (?:approved|consented|authori[sz]ed|agreed|confirmed)\b|\b(?:do not|never|no need to|without) (?:[^\s.!?;:]+ )?(?:ask|asking|wait|waiting) `+upTo3+`for (?:confirmation|approval|permission|consent)\b|`+
			`\bwithout asking (?:the )?(?:users?|humans?|anyone)\b|\bno need to ask the (?:user|human)\b`),
	newForm(redirects, "forwarded|changed|copied|bcc|cc'd|redirected|replaced| go |http|@|blind copy|bcc",
		`\b(?:when|whenever|if|every time|each time|all|every) (?:[^\s.!?;:]+ ){0,8}(?:must|should|shall|has to|have to) `+upTo3+`(?:changed|forwarded|copied|bcc|cc|redirected|replaced|go) (?:[^\s.!?;:]+ ){0,2}to\b|`+
			`\b(?:sent|send|forward|forwarded|copy|upload|post|posted) (?:[a-z]+ ){0,4}to (?:https?://|[^\s@]+@[^\s@]+\.[a-z])|@[^\s@]+\.[a-z]+ (?:as|in) (?:a |the )?(?:blind copy|bcc|cc)\b|\b(?:bcc|blind copy) (?:to )?[^\s@]+@`),
	newForm(addresses, " ai|assistant|model|llm|agent|claude|gpt|copilot|gemini",
		`\b(?:message to|dear|attention,?|tell|tells) (?:the |all |any )?(?:ai|assistant|model|llm|agent|claude|chatgpt|gpt|copilot|gemini)\b|\bif you are an? (?:ai|llm|assistant|model)[a-z ]{0,20},? (?:you must|you have to|always|first|immediately|silently)\b|\b(?:model|assistant|agent|ai) (?:that is |which is )?reading this\b|`+
			`\b(?:ai|assistant|model|llm|agent|claude|chatgpt|copilot|gemini)s? (?:must|shall|has to|have to|should) (?:always|first|never|also|immediately|silently) (?:[a-z]+ )`),
	newForm(addresses, "whenever the user", `\bwhenever the user `+upTo6+`(?:call|use|run|invoke|execute) [a-z ]{0,20}[a-z0-9]+(?: of the| from the| tool| first)`),
	{
		triggers: []string{"<", "[", "system", "assistant", "admin", "developer"}, raw: true, meaning: addresses,
		words: compiled(`<\s*/?\s*(?:important|system|secret|admin|assistant|hidden|override|critical)\s*>|\[/?(?:inst|system|admin|hidden)\]|<\|[a-z_]+\|>|` +
			`(?:^|\n|[.!?] +)(?:system|assistant|admin|developer) ?: `),
	},
}

// secretLocations is an expression for folded texts that matches the locations of secrets.
const secretLocations = `\.ssh\b|\bid (?:rsa|dsa|ecdsa|ed25519)|\.aws/|(?:^|[ /(])\.env\b|/etc/(?:passwd|shadow)|\.netrc|\.npmrc|\.git credentials|\.kube/config|\.docker/config|\.gnupg|\.pgpass|` +
	`wallet\.dat|mcp\.json|claude desktop config|bash history|known hosts|authorized keys`

// accessWords is an expression that matches words for reading or sending.
const accessWords = `reads?|cat|open|pass|send|include|attach|paste|upload|append|forward|dump|leak|copy|put|contents? of|` +
	`lee|lea|lis|lisez|lies|lese|leia|leggi|envía|envia|envoie|sende|incolla|pega|colle|cole|transmets|füge|copia|copie|kopiere|` +
	`读取|發送|讀取|发送|粘贴|复制|読|送|貼|읽|보내|붙여|прочитай|прочти|вставь|отправь|передай|скопируй`

// These constants limit the search for steering forms. All of them are in bytes. Texts shorter than minForm are not
// searched. The search ends early after maxFolded bytes of texts, or after expressions were tried on maxTried bytes. In
// this case, the definition is treated as if it instructed the model.
const (
	minForm   = 12
	maxFolded = 128 << 10
	maxTried  = 1 << 20
)

// hasSteeringText reports whether a form matches a text in the definition. It adds evidence for the first match of each
// meaning.
func (c *finding) hasSteeringText() bool {
	seen, read := make(map[string]bool), make(map[string]bool)
	tried, folded := 0, 0
	for _, text := range c.tool.Texts {
		if len(text.Value) < minForm || read[text.Value] {
			continue
		}
		read[text.Value] = true
		folded += len(text.Value)
		if tried > maxTried || folded > maxFolded {
			c.quote(text, 0, lastOf(text.Value, 0), "the definition has too much text that may steer its reader: the text from here on was not looked at")
			return true
		}
		plain, lower := fold(text.Value, false), lowered(text.Value)
		for _, f := range forms {
			of := plain.text
			if f.raw {
				of = lower
			}
			if seen[f.meaning] {
				continue
			}
			at, read := f.find(of)
			tried += read
			if at == nil {
				continue
			}
			seen[f.meaning] = true
			if !f.raw {
				offsets := fold(text.Value, true).at
				at[0], at[1] = offsets[at[0]], lastOf(text.Value, offsets[at[1]-1])
			}
			c.quote(text, at[0], at[1], f.meaning)
		}
	}
	return len(seen) > 0
}

// lastOf returns the offset of the end of the character that begins at the given offset.
func lastOf(text string, at int) int {
	for i := range text[at:] {
		if i > 0 {
			return at + i
		}
	}
	return len(text)
}

// maxQuote limits the length of a quote in evidence, in bytes.
const maxQuote = 200

// quote adds a part of a text as evidence for a tag. Such evidence has no category. It can change the tool's risk, but
// not the tool's category.
func (c *finding) quote(text Text, from, to int, meaning string) {
	path := c.tool.path(text)
	if path == "" {
		return
	}
	for to = min(to, from+maxQuote); to > from && to < len(text.Value) && text.Value[to]&0xc0 == 0x80; to-- {
	}
	c.add(&policyv1.Evidence{
		Path: path, InKey: text.InKey, Offset: int32(from), Quote: text.Value[from:to], Weight: 1, Meaning: meaning,
	})
}
