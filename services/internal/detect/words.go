package detect

// A wordSet finds many words in one pass over a text (Aho and Corasick, 1975). ASCII letters match regardless of case.
type wordSet struct {
	// classes maps each byte to its class, which is less than size. All bytes that occur in no word have the class 0.
	classes [256]uint8
	size    int
	// next[state*size+class] is the next state.
	next []int32
	// words[state] contains the indexes of the words that are recognized in the state.
	words [][]int32
}

// newWordSet returns the set of words. Empty words are ignored.
func newWordSet(words []string) *wordSet {
	w := &wordSet{size: 1}
	for _, word := range words {
		for i := range len(word) {
			if c := lower(word[i]); w.classes[c] == 0 {
				w.classes[c] = uint8(w.size)
				w.size++
			}
		}
	}
	for c := byte('A'); c <= 'Z'; c++ {
		w.classes[c] = w.classes[lower(c)]
	}
	w.addState()
	for i, word := range words {
		if word != "" {
			w.insert(int32(i), word)
		}
	}
	w.link()
	return w
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c | 0x20
	}
	return c
}

func (w *wordSet) addState() int32 {
	w.next, w.words = append(w.next, make([]int32, w.size)...), append(w.words, nil)
	return int32(len(w.words) - 1)
}

func (w *wordSet) insert(index int32, word string) {
	state := int32(0)
	for i := range len(word) {
		step := int(state)*w.size + int(w.classes[word[i]])
		if w.next[step] == 0 {
			added := w.addState()
			w.next[step] = added
		}
		state = w.next[step]
	}
	w.words[state] = append(w.words[state], index)
}

// link adds the transitions for bytes that do not continue a word. Such a transition leads to the state of the longest
// suffix that begins a word.
func (w *wordSet) link() {
	suffix := make([]int32, len(w.words))
	queue := make([]int32, 0, len(w.words))
	for _, state := range w.next[:w.size] {
		if state != 0 {
			queue = append(queue, state)
		}
	}
	for len(queue) > 0 {
		state := queue[0]
		queue = queue[1:]
		w.words[state] = append(w.words[state], w.words[suffix[state]]...)
		for class := range w.size {
			step, fallback := int(state)*w.size+class, w.next[int(suffix[state])*w.size+class]
			if child := w.next[step]; child != 0 {
				suffix[child] = fallback
				queue = append(queue, child)
			} else {
				w.next[step] = fallback
			}
		}
	}
}

// step returns the state after reading a byte.
func (w *wordSet) step(state int32, c byte) int32 { return w.next[int(state)*w.size+int(w.classes[c])] }

// isIn reports whether a text contains one of the words.
func (w *wordSet) isIn(text string) bool {
	state := int32(0)
	for i := range len(text) {
		if state = w.step(state, text[i]); len(w.words[state]) > 0 {
			return true
		}
	}
	return false
}
