package config

import "time"

const (
	// maxTurnPlaces, maxQuestionPlaces and maxQueue are how many may work, and wait, at a time.
	maxTurnPlaces     = 64
	maxQuestionPlaces = 1024
	maxQueue          = 10_000
)

// checkPlaces checks the bounds of turns and questions of agents.
func (a Agents) checkPlaces(p *problems) {
	q := a.Questions
	a.Turns.check(p, "agents.turns", maxTurnPlaces)
	Places{q.Places, q.PersonPlaces, q.Queue, q.PersonQueue, q.Wait}.check(p, "agents.questions", maxQuestionPlaces)
	checkWait(p, "agents.questions.timeout", q.Timeout)
	checkWait(p, "agents.questions.first_byte", q.FirstByte)
}

func (q Places) check(p *problems, at string, most int) {
	within := func(key string, n, most int) {
		if n < 0 || n > most {
			p.addf(at+"."+key, "%d is not between 1 and %d; 0 means the default", n, most)
		}
	}
	within("places", q.Places, most)
	within("queue", q.Queue, maxQueue)
	if q.Places > 0 {
		most = q.Places
	}
	within("person_places", q.PersonPlaces, most)
	most = maxQueue
	if q.Queue > 0 {
		most = q.Queue
	}
	within("person_queue", q.PersonQueue, most)
	checkWait(p, at+".wait", q.Wait)
}

func checkWait(p *problems, at string, d time.Duration) {
	if d < 0 || d > time.Hour {
		p.addf(at, "%s is not between 0s, which means the default, and 1h", d)
	}
}
