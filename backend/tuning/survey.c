/* The decider's side of a survey: its candidates, its list, and its result. */
#include "backend/tuning/survey.h"
#include "backend/base/log.h"
#include "backend/base/status.h"
#include "backend/collectives/collectives.h"
#include <math.h>
#include <string.h>

/* The trials of one survey. The entries after them run the best candidate so far. */
enum { MAX_TRIALS = 8, NO_VARIANT = -1 };
/* A candidate counts as faster if its time is below FASTER times the best time before it. The best candidate wins if
   its time is below WINS times the incumbent's. */
static const double FASTER = 0.95, WINS = 0.9;
/* If the time of a kept choice differs by at most this factor from its time when it was the incumbent, the survey ends:
   the machine is as it was then. */
static const double AS_BEFORE = 1.25;
/* After a survey that a change started, the next such survey may begin after PAUSE calls. Each survey without a winner
   doubles this pause, at most MAX_DOUBLINGS times. It is PAUSE again after FORGETS further calls without a survey. */
enum { PAUSE = 16, MAX_DOUBLINGS = 5, FORGETS = 500 };
/* The variants in the order of trials: those that usually have the largest effect first. */
static const int variants[] = { 0, FIRST_ALGORITHM, 3, 2, 1, FIRST_ALGORITHM + 1, 5, 6, 4, FIRST_ALGORITHM + 2 };
enum { VARIANTS_TRIED = sizeof variants / sizeof *variants };

/* ---- the shared list ---- */
/* Writes the next entry: all ranks run this code in call from + entries. */
static void survey_write_entry(struct survey *survey, uint32_t code)
{
    atomic_store_explicit(&survey->line->survey[survey->entries++], code | SURVEY_ENTRY, memory_order_release);
}
/* Empties the list and sets its first call. No rank may still use the old one. */
static void survey_reset_list(struct survey *survey, uint64_t from)
{
    survey->from = from;
    for (int i = 0; i < SURVEY_CALLS; i++) atomic_store_explicit(&survey->line->survey[i], 0, memory_order_relaxed);
    atomic_store_explicit(&survey->line->survey_from, from, memory_order_release);
}
bool survey_may_start(const struct survey *survey, const struct survey_call *call)
{
    return !survey->is_running && (!survey->from || call->number >= survey->from + SURVEY_CALLS + call->behind);
}

/* ---- its candidates ---- */
/* True if the code is the incumbent's, which may be 0: as predicted. */
static bool survey_is_incumbent(const struct survey_call *call, uint32_t code)
{
    return code == call->incumbent->code || code == choice_encode(&call->incumbent->choice);
}
static bool survey_has_tried(const struct survey *survey, const struct survey_call *call, uint32_t code)
{
    for (int i = 0; i < survey->trials; i++)
        if (survey->tried[i].code == code) return true;
    return survey_is_incumbent(call, code);
}
/* Sets *out to the choice. Returns false if it has been tried. */
static bool survey_take_choice(const struct survey *survey, const struct survey_call *call, const struct choice *choice,
    struct candidate *out)
{
    *out = (struct candidate){ .choice = *choice, .code = choice_encode(choice) };
    return !survey_has_tried(survey, call, out->code);
}
/* Sets *out to a variant of the best candidate so far. Returns false if it does not exist or has been tried. */
static bool survey_make_variant(const struct survey *survey, const struct survey_call *call, int variant,
    struct candidate *out)
{
    struct choice made;
    bool exists = false;
    tutti_status status =
        choice_make_variant(call->limits, call->question, &survey->best.choice, variant, &made, &exists);
    return status == TUTTI_OK && exists && survey_take_choice(survey, call, &made, out);
}
/* Finds the next candidate, and the variant that it is or NO_VARIANT. Returns false if all have been tried. */
static bool survey_find_candidate(struct survey *survey, const struct survey_call *call, struct candidate *out,
    int *variant)
{
    *variant = NO_VARIANT;
    while (survey->next_kept < survey->kept_count)
        if (survey_take_choice(survey, call, &survey->kept[survey->next_kept++].choice, out)) return true;
    bool is_next = !survey->has_tried_predicted;
    survey->has_tried_predicted = true;
    if (is_next && survey_take_choice(survey, call, call->predicted, out)) return true;
    *variant = survey->again;
    survey->again = NO_VARIANT;
    if (*variant != NO_VARIANT && survey_make_variant(survey, call, *variant, out)) return true;
    while (survey->next_variant < VARIANTS_TRIED) {
        *variant = variants[survey->next_variant++];
        if (survey_make_variant(survey, call, *variant, out)) return true;
    }
    return false;
}
/* Writes the next entry as a trial. Returns false if there are no more trials. */
static bool survey_write_trial(struct survey *survey, const struct survey_call *call)
{
    struct candidate candidate;
    int variant, entry = survey->entries;
    bool ended = survey->is_decided || survey->trials < entry || survey->trials == MAX_TRIALS;
    if (ended || !survey_find_candidate(survey, call, &candidate, &variant)) return false;
    survey->tried[entry] = candidate;
    survey->base_ns[entry] = survey->best.ns;
    survey->variant[entry] = variant;
    survey->trials++;
    survey_write_entry(survey, candidate.code);
    return true;
}
void survey_write_due_entries(struct survey *survey, const struct survey_call *call)
{
    while (survey->entries < SURVEY_CALLS && survey->from + (uint64_t)survey->entries <= call->number + call->ahead + 1)
        if (!survey_write_trial(survey, call))
            survey_write_entry(survey, survey->is_decided ? call->incumbent->code : survey->best.code);
}

/* ---- its result ---- */
/* Puts the incumbent first among the kept choices. */
static void survey_keep(struct survey *survey, const struct candidate *incumbent, double usual_ns)
{
    struct candidate kept = *incumbent;
    kept.code = choice_encode(&kept.choice);
    kept.ns = usual_ns;
    int last = 0;
    while (last < survey->kept_count && survey->kept[last].code != kept.code) last++;
    if (last == survey->kept_count && last < KEPT_CHOICES) survey->kept_count++;
    if (last == KEPT_CHOICES) last--;
    memmove(&survey->kept[1], &survey->kept[0], (size_t)last * sizeof kept);
    survey->kept[0] = kept;
}
static void survey_log(const struct survey *survey, const struct survey_call *call, double usual_ns)
{
    char before[CHOICE_TEXT_BYTES], after[CHOICE_TEXT_BYTES];
    choice_format(&call->incumbent->choice, before);
    choice_format(&survey->best.choice, after);
    LOG(DEBUG, "%s of %zu bytes: %s took %.2f us, and now %.2f; the best of %d trials is %s with %.2f us",
        collective_name(call->question->collective), call->question->message_bytes, before, usual_ns / 1e3,
        survey->incumbent_ns / 1e3, survey->trials, after, survey->best.ns / 1e3);
}
bool survey_decide(struct survey *survey, const struct survey_call *call, double usual_ns)
{
    bool wins = survey->best.ns < WINS * survey->incumbent_ns, changes = wins && survey->is_alarmed;
    survey_log(survey, call, usual_ns);
    survey->is_decided = true;
    survey->follows = changes && !survey->follows;
    survey->fruitless = wins ? 0 : survey->fruitless + 1;
    int doublings = survey->fruitless < MAX_DOUBLINGS ? survey->fruitless : MAX_DOUBLINGS;
    survey->next_call = call->number + (survey->is_alarmed ? (uint64_t)PAUSE << doublings : 0);
    survey->next_planned = call->number + (changes ? 0 : SURVEY_EVERY * call->watch);
    if (changes) survey_keep(survey, call->incumbent, usual_ns);
    return wins;
}
static bool survey_is_as_before(double ns, double kept_ns)
{
    return ns < AS_BEFORE * kept_ns && kept_ns < AS_BEFORE * ns;
}
/* A survey can be decided if all times of the trials have come, a kept choice takes as long as it did when it was the
   incumbent, or the list has ended. */
bool survey_is_complete(const struct survey *survey, const struct survey_call *call)
{
    if (!survey->is_running || survey->is_decided) return false;
    for (int i = 0; i < survey->kept_count && !survey_is_incumbent(call, survey->best.code); i++)
        if (survey->best.code == survey->kept[i].code && survey_is_as_before(survey->best.ns, survey->kept[i].ns))
            return true;
    bool have_all_come = survey->trials < survey->entries && survey->times >= survey->trials;
    return have_all_come || call->number >= survey->from + SURVEY_CALLS;
}
void survey_abort(struct survey *survey) { survey->is_running = survey->follows = false; }
void survey_retire(struct survey *survey, const struct survey_call *call)
{
    survey_abort(survey);
    if (survey->from && survey_may_start(survey, call)) survey_reset_list(survey, 0);
}

/* ---- its calls ---- */
void survey_start(struct survey *survey, const struct watch *watch, const struct survey_call *call)
{
    if (call->number > survey->next_call + FORGETS) survey->fruitless = 0;
    survey->is_running = true;
    survey->is_decided = survey->has_tried_predicted = false;
    survey->entries = survey->trials = survey->times = survey->next_kept = survey->next_variant = 0;
    survey->again = NO_VARIANT;
    survey->is_alarmed = survey->follows || watch_has_changed(watch);
    /* A survey that follows another one compares with the time of that one's winner. */
    survey->incumbent_ns = survey->follows ? survey->best.ns : watch->level_ns;
    survey->lost = 0;
    survey->best = *call->incumbent;
    survey->best.ns = survey->incumbent_ns;
    survey_reset_list(survey, call->number + call->ahead + 1);
}
/* Adds the time of a call of the incumbent between the slow ones and the first trial. If it is a usual one, the slow
   ones were interruptions, and the survey ends. */
static void survey_check_alarm(struct survey *survey, struct watch *watch, uint32_t code, double ns)
{
    if (code != survey->best.code || !survey->is_alarmed || survey->follows) return;
    survey->is_decided = !watch_add(watch, ns);
    survey->best.ns = survey->incumbent_ns = watch->level_ns;
}
void survey_add_time(struct survey *survey, struct watch *watch, uint64_t number, uint32_t code, double ns)
{
    uint64_t entry = number - survey->from;
    if (!survey->is_running || survey->is_decided) return;
    if (number < survey->from) { survey_check_alarm(survey, watch, code, ns); return; }
    if (entry >= (uint64_t)survey->trials || survey->tried[entry].code != code) return;
    survey->times = (int)entry + 1;
    survey->tried[entry].ns = ns;
    survey->lost += fmax(ns / survey->incumbent_ns - 1, 0);
    if (ns < FASTER * survey->best.ns) survey->best = survey->tried[entry];
    else if (ns < FASTER * survey->base_ns[entry] && survey->variant[entry] != NO_VARIANT)
        survey->again = survey->variant[entry];
}
